"""Steps by size from everything that holds them, and what is said of what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.cli.traffic_input import read_histogram, read_planned
from ostinato.errors import ConfigError
from ostinato.telemetry import EventBus, JsonLinesSink, KeysPlanned, StepDispatched, Tally

STEPS = [
    *[("FULL", "4/256", True, 3, 3)] * 5,
    *[("FULL", "4/256", True, 4, 4)] * 2,
    ("PIECEWISE", "64", False, 40, 2),
]
EXPECTED = {"decode": {3: 5, 4: 2}, "mixed": {40: 1}}


def tell(sink: object) -> None:
    bus = EventBus(sink)  # type: ignore[arg-type]
    bus.emit(KeysPlanned(keys=("FULL tokens=4 reqs=4 query_len=1",), largest_tokens=4))
    for mode, bucket, is_decode, tokens, reqs in STEPS:
        bus.emit(
            StepDispatched(
                runtime_mode=mode,
                bucket=bucket,
                reason="PADDED",
                live_tokens=tokens,
                padded_tokens=64,
                is_decode=is_decode,
                live_reqs=reqs,
            )
        )


def told() -> dict:
    tally = Tally()
    tell(tally)
    return tally.snapshot()


def written(path: Path, document: object) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2))
    return str(path)


DOCUMENTS = {
    "a histogram": lambda: {"decode": {"3": 5, "4": 2}, "mixed": {"40": 1}},
    "stats --json": lambda: {"source": "events.jsonl", **told()},
    "generate --json": lambda: {"outputs": [], "dispatch": told()["dispatch"], "graphs": {}, "config": {}},
    "the counters alone": lambda: told()["dispatch"],
    "a manifest": lambda: {"origin": {}, "keys": {}, "kv_tokens": 1, "traffic": told()["dispatch"]["histogram"]},
    "stats --watch --json": lambda: json.dumps({"dispatch": {}}) + "\n" + json.dumps(told()) + "\n",
    "a watch that is being written": lambda: json.dumps(told()) + "\n" + '{"dispat',
    "one line": lambda: json.dumps(told()),
}


@pytest.mark.parametrize("form", DOCUMENTS)
def test_every_form_gives_the_same_steps(form: str, tmp_path: Path) -> None:
    found = read_histogram(written(tmp_path / "f.json", DOCUMENTS[form]()))
    assert (found.decode, found.mixed) == (EXPECTED["decode"], EXPECTED["mixed"])


@pytest.mark.parametrize("every_step", [False, True])
def test_events_are_added_up(tmp_path: Path, every_step: bool) -> None:
    path = tmp_path / "events.jsonl"
    with JsonLinesSink(path, every_step=every_step) as sink:
        tell(sink)
        sink.flush()
        tell(sink)
    found = read_histogram(str(path))
    assert found.decode == {3: 10, 4: 4} and found.mixed == {40: 2}
    assert read_planned(str(path)) == (found, ["FULL tokens=4 reqs=4 query_len=1"], None)


def without_histogram() -> dict:
    document = told()
    del document["dispatch"]["histogram"]
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (without_histogram(), "has no histogram: its counters were read from a metrics endpoint"),
        ({"origin": {}, "keys": {}, "kv_tokens": 1, "traffic": None}, "has no traffic: no step was served"),
        ({"rows": []}, "a histogram is an object"),
        ({"dispatch": {"steps": 0, "buckets": [], "histogram": {"decode": {}, "mixed": {}}}}, "has no steps"),
        ({"dispatch": {"steps": 1, "buckets": [], "histogram": {"decode": {"4": -1}}}}, "has 4: -1"),
        ({"dispatch": {"steps": 1, "buckets": [], "histogram": None}}, "a histogram is an object"),
        ({"dispatch": "?"}, "a histogram is an object"),
        ([], "a histogram is an object"),
        ("", "is not JSON"),
        ('{"event": "Opened"}\n{"event": "Steps"}\n', "line 2 of"),
    ],
)
def test_what_has_no_sizes_says_so_with_the_files_name(document: object, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "f.json", document)
    with pytest.raises(ConfigError, match=message) as caught:
        read_histogram(path)
    assert path in caught.value.message


def test_an_endpoint_is_refused_without_asking_it() -> None:
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:9/metrics has no histogram: a metrics endpoint carries"):
        read_histogram("http://127.0.0.1:9/metrics")


def test_planned_keys_of_a_document(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    found, planned, _ = read_planned(written(path, told()))
    assert (found.decode, planned) == (EXPECTED["decode"], ["FULL tokens=4 reqs=4 query_len=1"])
    document = told()
    document["dispatch"]["key_hits"]["FULL tokens=2 reqs=2 query_len=1"] = 3  # retired since
    with pytest.raises(ConfigError, match="sizes were changed while it ran"):
        read_planned(written(path, document))
    with JsonLinesSink(tmp_path / "events.jsonl") as sink:
        tell(sink)
        sink.emit(KeysPlanned(keys=("FULL tokens=8",), largest_tokens=8))
    assert read_planned(str(tmp_path / "events.jsonl"))[1] == ["FULL tokens=8"], "an event file tells when"


@pytest.mark.parametrize("missing", ["key_hits", "never_hit", "keys"])
def test_documents_that_do_not_say_what_is_planned(tmp_path: Path, missing: str) -> None:
    document = told()
    del document["dispatch"][missing]
    with pytest.raises(ConfigError, match=f"does not say which graphs are planned: KeyError: '{missing}'"):
        read_planned(written(tmp_path / "f.json", document))
    with pytest.raises(ConfigError, match="does not say which graphs are planned"):
        read_planned(written(tmp_path / "f.json", {"decode": {"3": 5}}))
