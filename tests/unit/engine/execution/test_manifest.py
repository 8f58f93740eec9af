"""What one start tells the next."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ostinato import LLM, SamplingParams
from ostinato.engine.execution import BackgroundCapture
from ostinato.engine.execution.kv_pool import KvPool
from ostinato.errors import ConfigError
from ostinato.runtime import Reason
from ostinato.telemetry import GraphCaptured, KeyDropped, MemorySink
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "kv_tokens": 256,
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 32,
    "decode_sizes": (1, 2, 4),
    "token_sizes": (16, 32),
}
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.fixture
def start(tiny_dir: Callable[[str], Path], tmp_path: Path) -> Callable[..., LLM]:
    def make(*, folder: Path | None = None, **changes: Any) -> LLM:
        settings = {**SETTINGS, "manifest": str(tmp_path / "manifest.json"), **changes}
        return LLM(str(folder or tiny_dir("llama")), **settings)

    return make


def read(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "manifest.json").read_text())
    return found


def test_it_is_written_after_capture_and_at_the_end(start: Callable[..., LLM], tmp_path: Path) -> None:
    with start() as llm:
        keys = [str(key) for key in llm._require_open().graphed.keys]
        first = read(tmp_path)
        assert list(first["keys"]) == keys and {entry["verdict"] for entry in first["keys"].values()} == {"captured"}
        assert sum(entry["pool_bytes"] for entry in first["keys"].values()) == llm.stats()["graphs"]["pool_bytes"]
        seconds = [entry["seconds"] for entry in first["keys"].values()]
        assert min(seconds) > 0 and sum(seconds) <= llm.stats()["graphs"]["capture_seconds"] + 0.001
        assert first["traffic"] is None and first["kv_tokens"] == 256
        llm.generate([[1, 2, 3], [4]], PARAMS)
        histogram = llm.stats()["dispatch"]["histogram"]
    assert read(tmp_path)["traffic"] == histogram


def test_what_was_quarantined_is_not_captured_again(start: Callable[..., LLM]) -> None:
    with start() as llm:
        graphed = llm._require_open().graphed
        bad = next(key for key in graphed.keys if key.num_reqs == 2)
        graphed._dispatcher.quarantine(bad, found_by="qualify", what="planted", where="")
        expected = llm.generate([[1, 2, 3], [4]], PARAMS)
    sink = MemorySink()
    with start(sinks=[sink]) as llm:
        graphed = llm._require_open().graphed
        assert graphed.why_blocked(bad) is Reason.QUARANTINED and bad not in graphed.plans
        assert str(bad) in {event.key for event in sink.events if isinstance(event, KeyDropped)}
        assert str(bad) not in {event.key for event in sink.events if isinstance(event, GraphCaptured)}
        assert len(graphed.plans) == len(graphed.keys) - 1
        assert "used" in llm.stats()["config"]["reasons"]["manifest"]
        found = llm.generate([[1, 2, 3], [4]], PARAMS)
        assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    with start(sinks=[sink]) as llm:
        assert llm._require_open().graphed.why_blocked(bad) is Reason.QUARANTINED, "until something changes"


@pytest.mark.parametrize("change", [{"page_size": 8}, {"decode_sizes": (1, 4)}, {"dtype": "bfloat16"}])
def test_it_is_stale_when_a_setting_changes(start: Callable[..., LLM], tmp_path: Path, change: dict[str, Any]) -> None:
    start().close()
    document = read(tmp_path)
    for entry in document["keys"].values():
        entry["verdict"] = "failed"
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with start(**change) as llm:
        assert "it is stale: settings was" in llm.stats()["config"]["reasons"]["manifest"]
        assert len(llm._require_open().graphed.plans) == len(llm._require_open().graphed.keys)
    assert read(tmp_path)["origin"] != document["origin"], "replaced"


def test_another_version_makes_it_stale(start: Callable[..., LLM], tmp_path: Path) -> None:
    start().close()
    document = read(tmp_path)
    document["origin"]["torch"] = "2.0"
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with start() as llm:
        assert "torch was 2.0" in llm.stats()["config"]["reasons"]["manifest"]


def test_another_model_at_the_same_path_makes_it_stale(start: Callable[..., LLM], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "llama")
    start(folder=folder).close()
    before = read(tmp_path)
    shutil.rmtree(folder)
    write_tiny_model(folder, "qwen3")
    with start(folder=folder) as llm:
        assert "it is stale: model config was llama " in llm.stats()["config"]["reasons"]["manifest"]
        assert ", and is qwen3 " in llm.stats()["config"]["reasons"]["manifest"]
    assert read(tmp_path)["origin"]["model config"] != before["origin"]["model config"], "replaced"
    assert read(tmp_path)["origin"]["model"] == before["origin"]["model"]


def test_other_weights_in_the_same_folder_make_it_stale(start: Callable[..., LLM], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "llama", seed=1)
    start(folder=folder).close()
    with start(folder=folder) as llm:
        assert "used" in llm.stats()["config"]["reasons"]["manifest"], "nothing has changed"
    write_tiny_model(folder, "llama", seed=2)
    with start(folder=folder) as llm:
        assert "it is stale: weights was" in llm.stats()["config"]["reasons"]["manifest"]
    with start(folder=folder, load_format="dummy") as llm:
        assert "and is dummy" in llm.stats()["config"]["reasons"]["manifest"]


def test_after_a_reload_it_is_of_the_weights_that_serve(start: Callable[..., LLM], tmp_path: Path) -> None:
    old, new = (write_tiny_model(tmp_path / f"seed{seed}", "llama", seed=seed) for seed in (1, 2))
    with start(folder=old) as llm:
        llm.reload_weights(str(new))
    for folder, words in ((new, "used"), (old, f"it is stale: model was {new}, and is {old}")):
        with start(folder=folder) as llm:
            assert words in llm.stats()["config"]["reasons"]["manifest"]
    write_tiny_model(old, "llama", seed=3)
    llm = start(folder=old)
    write_tiny_model(old, "llama", seed=2)
    with llm:
        llm.reload_weights()
    with start(folder=old) as llm:
        assert "used" in llm.stats()["config"]["reasons"]["manifest"], "the folder's name is the same, its weights too"


def test_another_compiler_makes_it_stale(start: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    with monkeypatch.context() as patched:
        patched.setattr(metadata, "version", lambda name: "1.0" if name == "triton" else version(name))
        start().close()
    with start() as llm:
        assert "it is stale: triton was 1.0, and is" in llm.stats()["config"]["reasons"]["manifest"]


def test_a_file_of_an_older_version_is_stale_and_no_error(start: Callable[..., LLM], tmp_path: Path) -> None:
    start().close()
    document = read(tmp_path)
    del document["origin"]["weights"]
    for entry in document["keys"].values():
        del entry["seconds"]
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with start() as llm:
        assert "it is stale: weights was unknown" in llm.stats()["config"]["reasons"]["manifest"]


def test_settings_that_change_no_graph_leave_it_valid(start: Callable[..., LLM]) -> None:
    start().close()
    with start(seed=7, overlap=True, capture="background") as llm:
        assert "used" in llm.stats()["config"]["reasons"]["manifest"]


def test_background_capture_follows_the_traffic_of_the_last_start(
    start: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundCapture, "is_due", lambda self, **_: False)
    with start() as llm:
        llm.generate([[1, 2, 3], [4]], SamplingParams(max_tokens=30, ignore_eos=True))  # decodes of two
    with start(capture="background") as llm:
        background = llm._background
        assert background is not None
        first = background.capture_next(is_idle=True)
        assert first is not None and first.kind == "full decode", "the largest, of 32 tokens, saw two steps"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the memory of each KV cache was settled."""
    calls: list[dict[str, Any]] = []
    settle = KvPool.settle
    monkeypatch.setattr(KvPool, "settle", lambda self, **how: (calls.append(how), settle(self, **how))[1])
    return calls


def test_room_is_left_for_the_graphs_that_are_to_come(start: Callable[..., LLM], settled: list[dict[str, Any]]) -> None:
    with start() as llm:
        pool_bytes = llm.stats()["graphs"]["pool_bytes"]
    start(capture="background").close()
    assert settled == [{}, {"less_bytes": pool_bytes}]


def test_room_is_left_for_the_planned_graphs_alone(
    start: Callable[..., LLM], tmp_path: Path, settled: list[dict[str, Any]]
) -> None:
    """The file may know sizes that were taken into service since, or that a ladder no longer has."""
    with start() as llm:
        pool_bytes = llm.stats()["graphs"]["pool_bytes"]
    document = read(tmp_path)
    document["keys"]["full decode, tokens=3"] = {"verdict": "captured", "pool_bytes": 12345, "driver_bytes": 0}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    start(capture="background").close()
    assert settled[-1] == {"less_bytes": pool_bytes}


@pytest.mark.parametrize("is_absent", [True, False])
def test_what_is_known_of_some_graphs_alone_reserves_nothing(
    start: Callable[..., LLM], tmp_path: Path, settled: list[dict[str, Any]], is_absent: bool
) -> None:
    """The last start ended before all were captured, or planned other sizes: the guess leaves more room."""
    start().close()
    document = read(tmp_path)
    name = next(iter(document["keys"]))
    del document["keys"][name]
    if not is_absent:
        document["keys"][name] = {"verdict": "pending", "pool_bytes": 0, "driver_bytes": 0}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    start(capture="background").close()
    assert settled[-1] == {"share": 0.5}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"origin": {}, "keys": {"a": {}}, "kv_tokens": 1, "traffic": null}',
        '{"origin": {}, "keys": {}, "kv_tokens": 1e400, "traffic": null}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_manifest(start: Callable[..., LLM], tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match="is no manifest"):
        start()
    assert (tmp_path / "manifest.json").read_text() == text, "whatever it is, it is left alone"


def test_a_place_that_cannot_be_written(start: Callable[..., LLM], tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "manifest.json"):
        with pytest.raises(ConfigError, match="cannot be"):
            start(manifest=str(path))
