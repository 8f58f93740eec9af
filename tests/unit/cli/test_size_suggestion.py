"""``ostinato stats --suggest``: what the engine itself would suggest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato import LLM, SamplingParams
from ostinato.cli.traffic_input import read_planned
from ostinato.engine.config import EngineConfig
from ostinato.telemetry import JsonLinesSink
from ostinato.testing.tiny_models import write_tiny_model

Command = Callable[..., int]
LIMITS: dict[str, Any] = {"device": "cpu", "max_num_reqs": 8, "max_model_len": 512, "kv_tokens": 2048}


def dispatch(decode: dict[str, int], mixed: dict[str, int], keys: list[str]) -> dict[str, Any]:
    return {
        "steps": 1,
        "buckets": [],
        "key_hits": {},
        "never_hit": keys,
        "keys": {"captured": len(keys), "waiting": 0, "failed": 0, "quarantined": 0},
        "histogram": {"decode": decode, "mixed": mixed},
    }


KEYS = [f"FULL tokens={n} reqs={n} query_len=1" for n in (1, 2, 4, 8)]
DRIFTED = {"dispatch": dispatch({"5": 2000, "3": 10}, {"20": 3}, [*KEYS, "PIECEWISE tokens=16", "PIECEWISE tokens=32"])}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(DRIFTED))
    return path


def test_sizes_for_traffic_that_has_drifted(
    source: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("stats", str(source), "--suggest", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"] == str(source)
    assert found["suggestion"]["decode"]["add"] == [3, 5] and 8 in found["suggestion"]["decode"]["then"]["sizes"]
    assert found["suggestion"]["mixed"] is None and "mixed: 3 steps were seen" in found["suggestion"]["reason"]


def test_people_are_given_settings(source: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert ostinato_command("stats", str(source), "--suggest") == 0
    reason, settings = capsys.readouterr().out.splitlines()
    assert "less computed" in reason
    config = EngineConfig(**json.loads(settings.removeprefix("settings for --config: ")))
    assert config.decode_sizes is not None and {3, 5, 8} < {*config.decode_sizes}


def test_the_engine_says_the_same(
    tmp_path: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its events and from its stats."""
    events, stats = tmp_path / "events.jsonl", tmp_path / "stats.json"
    sizes: dict[str, Any] = {
        "decode_sizes": (1, 8),
        "token_sizes": (8, 64),
        "max_num_batched_tokens": 600,
        "mode": "full_and_piecewise",
    }
    with JsonLinesSink(events) as sink, LLM(str(write_tiny_model(tmp_path)), sinks=[sink], **sizes, **LIMITS) as llm:
        for _ in range(3):
            llm.generate([[5, 6, 7]] * 3, SamplingParams(max_tokens=400, ignore_eos=True))
        expected = llm.suggest_sizes()
        stats.write_text(json.dumps(llm.stats(), default=str))
    assert expected.decode_sizes == (3, 8)
    for source in (events, stats):
        assert read_planned(str(source))[2] == 600, "as many as a step may have"
        assert ostinato_command("stats", str(source), "--suggest", "--json") == 0
        assert json.loads(capsys.readouterr().out)["suggestion"] == json.loads(json.dumps(expected.to_dict()))


@pytest.mark.parametrize(("most", "sizes"), [(512, [20, 100]), (90, [20, 32]), (None, [20, 32])])
def test_mixed_steps_above_all_graphs_get_one_where_the_engine_would_capture_it(
    tmp_path: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str], most: int | None, sizes: list[int]
) -> None:
    path = tmp_path / "stats.json"
    told = dispatch({}, {"20": 2000, "100": 2000, "900": 500}, [*KEYS, "PIECEWISE tokens=16", "PIECEWISE tokens=32"])
    path.write_text(json.dumps({"dispatch": told | ({} if most is None else {"max_captured_tokens": most})}))
    assert ostinato_command("stats", str(path), "--suggest", "--json") == 0
    found = json.loads(capsys.readouterr().out)["suggestion"]["mixed"]
    assert found["then"]["sizes"] == sizes


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"decode": {"3": 1}}, "does not say which graphs are planned"),
        ({"dispatch": dispatch({"5": 1}, {}, ["FULL tokens=?"])}, "names a graph that cannot be"),
        ({"dispatch": dispatch({}, {}, KEYS)}, "has no steps"),
        ({"dispatch": dispatch({"5": 1}, {}, KEYS) | {"max_captured_tokens": 0}}, "does not say which graphs"),
        ({"dispatch": dispatch({"5": 1}, {}, KEYS) | {"never_hit": [3, 4, 5, 6]}}, "does not say which graphs"),
        ({"dispatch": dispatch({"5": 10**400}, {}, KEYS)}, "the decode histogram has 5: 1000"),
        ({"dispatch": dispatch({"5": 1}, {}, KEYS) | {"max_captured_tokens": "many"}}, "does not say which graphs"),
    ],
)
def test_sources_that_suggest_nothing(
    tmp_path: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str], document: Any, message: str
) -> None:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(document))
    assert ostinato_command("stats", str(path), "--suggest") == 2
    err = capsys.readouterr().err
    assert message in err and str(path) in err


def test_an_endpoint_and_a_watch_are_refused(
    source: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("stats", "http://127.0.0.1:9/metrics", "--suggest") == 2
    assert "a metrics endpoint carries counters and no sizes" in capsys.readouterr().err
    assert ostinato_command("stats", str(source), "--suggest", "--watch", "1") == 2
    assert "--suggest looks once" in capsys.readouterr().err
