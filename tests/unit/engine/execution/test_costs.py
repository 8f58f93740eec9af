"""An engine's own steps, timed: whole ones, that leave the cache as it was; and the file of an earlier start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ostinato import LLM
from ostinato.bench.engine_probe import measure_buckets
from ostinato.engine import StepQuery
from ostinato.engine.config import EngineConfig, resolve_engine_config
from ostinato.engine.execution import Executor, measure_costs
from ostinato.engine.execution.costs import EngineSteps
from ostinato.engine.kvcache import named_pages
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.errors import ConfigError, ForeignCostsError, OstinatoError
from ostinato.runtime import BatchKind, CostTable, Decision, Graphed, RuntimeMode
from ostinato.runtime.dispatch import cost_file

if TYPE_CHECKING:
    from .conftest import ExecutorMaker

DECODE = BatchKind(uniform_query_len=1, kv_tier=256)
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "kv_tokens": 256,
    "max_num_reqs": 2,
    "max_num_batched_tokens": 16,
}


def everything(executor: Executor) -> dict[str, torch.Tensor]:
    """By bytes: nobody's slots hold NaN."""
    found = {name: pages.clone() for name, pages in named_pages(executor.caches)} | {
        "last ids": executor.last_ids.clone(),
        "inputs": executor.graphed.buffers.arena.clone(),
    }
    return {name: tensor.view(-1).view(torch.uint8) for name, tensor in found.items()}


def launched(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> list[tuple[ScheduledBatch, Decision]]:
    """Steps that are launched from here on."""
    seen: list[tuple[ScheduledBatch, Decision]] = []
    original = executor.launch

    def launch(batch: ScheduledBatch, decision: Decision) -> Any:
        seen.append((batch, decision))
        return original(batch, decision)

    monkeypatch.setattr(executor, "launch", launch)
    return seen


@pytest.mark.parametrize("always", [False, True])
def test_measuring_runs_every_way_and_leaves_everything_as_it_was(
    shared_executor: ExecutorMaker, helpers: Any, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    executor = shared_executor(mode="full" if always else "full_and_piecewise", always=always)
    batch = helpers.BatchMaker(executor)([(5, 1)] * 3, is_decode=True)
    expected = executor.execute(batch).logits.clone()
    before, counted = everything(executor), executor.graphed.counters.snapshot()
    seen = launched(executor, monkeypatch)
    try:
        table = measure_costs(executor, overlap=False)
        after = everything(executor)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert executor.graphed.counters.snapshot() == counted
        assert not executor._writer._entries, "no made-up request is remembered"
        ways = {(str(s.kind), s.way) for s in table.samples}
        mixed = "full graph" if always else "piecewise graph"
        kinds = ["decode kv_tier=256", "decode kv_tier=300"]
        assert {(kind, way) for kind in kinds for way in ("eager", "full decode graph", mixed)} <= ways
        assert any(way == mixed for kind, way in ways if kind.startswith("mixed"))
        assert {decision.runtime_mode for _, decision in seen} == (
            {RuntimeMode.FULL, RuntimeMode.EAGER} if always else set(RuntimeMode)
        )
        for timed, decision in seen:
            found = executor._live_batch(timed)
            assert (found.num_tokens, found.num_reqs) == (decision.live.num_tokens, decision.live.num_reqs)
            assert found.uniform_query_len == decision.live.uniform_query_len
            decode = executor.graphed.decide(found)
            assert decode.cost_ms is not None
    finally:
        executor.graphed.use_costs(None)
    assert torch.equal(executor.execute(batch).logits, expected), "the next step is as ever"


def test_decodes_read_histories_of_their_own_and_write_the_null_page(
    shared_executor: ExecutorMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = shared_executor(mode="full_and_piecewise")
    steps, seen = EngineSteps(executor), launched(executor, monkeypatch)
    key = next(key for key in executor.graphed.keys if key.uniform_query_len and key.num_reqs == 4)
    live = steps.live(DECODE, key)
    assert live is not None and (live.num_tokens, live.num_reqs) == (4, 4)
    steps.step(executor.graphed.decide(live), key).run()
    (batch, _), pages = seen[0], executor.limits.page_size
    for item in batch.items:
        assert item.start > 64 and item.end <= 256 and item.is_decode
        history = item.request.pages[: item.start // pages]
        assert 0 not in history and len(set(history)) > 10
        assert set(item.request.pages[item.start // pages :]) == {0}
    first, second = (set(item.request.pages[:20]) - {0} for item in batch.items[:2])
    assert not first & second


def test_prompts_longer_than_the_model_are_several(shared_executor: ExecutorMaker) -> None:
    executor = shared_executor(mode="piecewise", max_model_len=10)
    steps = EngineSteps(executor)
    key = max(executor.graphed.keys, key=lambda key: key.num_tokens)
    live = steps.live(BatchKind(), key)
    assert live is not None and (live.num_tokens, live.num_reqs) == (24, 3)
    batch = steps._batch(live)
    assert [item.num_new_tokens for item in batch.items] == [10, 10, 4]
    assert batch.uniform_query_len is None


def test_requests_enter_before_a_step_is_timed(shared_executor: ExecutorMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In serving they enter once; here the first step of each turn would be the slower one, by a millisecond."""
    executor = shared_executor(mode="full_and_piecewise")
    steps, entered = EngineSteps(executor), []
    original = executor._writer._enter
    monkeypatch.setattr(executor._writer, "_enter", lambda *args: entered.append(args) or original(*args))
    key = next(key for key in executor.graphed.keys if key.uniform_query_len and key.num_reqs == 4)
    live = steps.live(DECODE, key)
    assert live is not None
    one, other = (steps.step(executor.graphed.decide(live), key) for _ in range(2))
    for turn in (one, other, one):
        turn.ready()
        assert len(entered) == 4
        entered.clear()
        turn.run()
        assert not entered
    executor.forget_requests()
    executor.leave_step()


# --- files ------------------------------------------------------------------------------------------


@pytest.fixture
def model(tiny_dir: Callable[[str], Path]) -> str:
    return str(tiny_dir("llama"))


def test_costs_are_written_and_read_by_the_next_start(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "costs.json"
    with LLM(model, costs=str(path), **SETTINGS) as llm:
        assert llm.config.dispatch == "measured"
        measured = llm.costs
        assert measured is not None and measured.samples
        assert llm.explain(StepQuery(num_decodes=2, context_tokens=9)).cost_ms is not None
        assert llm.generate([[1, 2, 3]])[0].token_ids
    document = json.loads(path.read_text())
    assert list(document["tables"]) == ["breakable"] == [llm.partition]
    assert document["origin"]["model"] == model and document["origin"]["dtype"] == "float32"
    monkeypatch.setattr(
        "ostinato.engine.execution.engine_graphs.measure_costs", None
    )  # a second measurement would fail
    with LLM(model, costs=str(path), **SETTINGS) as llm:
        assert llm.costs is not None
        assert {(s.way, s.size) for s in llm.costs.samples} == {(s.way, s.size) for s in measured.samples}


def test_another_partition_is_added_to_the_file(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    for partition in ("breakable", "fx"):
        with LLM(model, costs=str(path), partition=partition, **SETTINGS):
            pass
    document = json.loads(path.read_text())
    assert list(document["tables"]) == ["breakable", "fx"]
    assert {row["best"] for row in document["best"]}


def test_costs_of_shared_executables_are_apart(model: str, tmp_path: Path) -> None:
    """Their launches take longer."""
    path = tmp_path / "costs.json"
    for executables in ("own", "shared"):
        with LLM(model, costs=str(path), executables=executables, **SETTINGS):
            pass
    assert list(json.loads(path.read_text())["tables"]) == ["breakable", "breakable+shared"]


def test_costs_of_another_device_are_refused_before_anything_is_captured(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "costs.json"
    with LLM(model, costs=str(path), **SETTINGS):
        pass
    document = json.loads(path.read_text())
    document["origin"]["hardware"] = "NVIDIA H200"
    path.write_text(json.dumps(document))
    before = path.read_bytes()
    monkeypatch.setattr("ostinato.engine.execution.engine_graphs.Executor", None)
    with pytest.raises(ForeignCostsError, match="hardware NVIDIA H200, and here it is"):
        LLM(model, costs=str(path), **SETTINGS)
    assert path.read_bytes() == before


@pytest.mark.parametrize("overlap", [True, False])
def test_steps_are_timed_as_the_engine_runs_them(model: str, monkeypatch: pytest.MonkeyPatch, overlap: bool) -> None:
    """At its start, and by the benchmark that judges its decisions."""
    asked: list[bool] = []
    original = Graphed.measure

    def measure(graphed: Graphed, *, overlap: bool, **rest: Any) -> CostTable:
        asked.append(overlap)
        return original(graphed, overlap=overlap, **rest)

    monkeypatch.setattr(Graphed, "measure", measure)
    with LLM(model, dispatch="measured", overlap=overlap, **SETTINGS) as llm:
        assert asked == [overlap]
        measure_buckets(llm, budget_seconds=0.01)
        assert asked == [overlap, overlap]


def test_costs_of_steps_that_were_timed_otherwise_are_refused(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with LLM(model, costs=str(path), overlap=False, **SETTINGS):
        pass
    with pytest.raises(ForeignCostsError, match="overlap off, and here it is on"):
        LLM(model, costs=str(path), overlap=True, **SETTINGS)
    document = json.loads(path.read_text())
    del document["format"], document["origin"]["overlap"]
    path.write_text(json.dumps(document))
    with pytest.raises(ForeignCostsError, match="format 1, and here it is 2"):
        LLM(model, costs=str(path), overlap=False, **SETTINGS)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_captured(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.engine.execution.engine_graphs.Executor", None)
    with pytest.raises(ConfigError, match="cannot be written"):
        LLM(model, costs=str(tmp_path / "none" / "costs.json"), **SETTINGS)


def why_costs(llm: LLM) -> str | None:
    """What is said of them, if anything is."""
    reasons: dict[str, str] = llm.stats()["config"]["reasons"]
    return reasons.get("costs")


OTHER_SIZES: dict[str, Any] = {"decode_sizes": (1, 2), "token_sizes": (4, 16)}


def test_costs_of_another_ladder_are_measured_again_and_it_is_said(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "costs.json"
    with LLM(model, costs=str(path), **SETTINGS) as llm:
        assert why_costs(llm) is None
    before = json.loads(path.read_text())
    with LLM(model, costs=str(path), **SETTINGS, **OTHER_SIZES) as llm:
        why = why_costs(llm)
        assert why is not None and why in caplog.text and why.endswith("; measured again")
        assert "measured with other sizes: it has no cost of" in why
        assert llm.costs is not None
        assert {s.size for s in llm.costs.samples if s.way == "piecewise graph"} == {4, 16}
    assert json.loads(path.read_text())["tables"] != before["tables"]
    caplog.clear()
    with LLM(model, costs=str(path), **SETTINGS, **OTHER_SIZES) as llm:
        assert why_costs(llm) is None and not caplog.text, "the file is of this ladder now"


def test_costs_of_sizes_that_came_later_are_estimates_and_it_is_said(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(model, dispatch="measured", **SETTINGS, **OTHER_SIZES) as llm:
        llm._graphs.resize(sizes=(16,), decode_sizes=(2,), on_key=None)
        assert why_costs(llm) is None, "these are measured"
        llm._graphs.resize(sizes=(8, 16), decode_sizes=None, on_key=None)
        why = why_costs(llm)
        assert why is not None and why in caplog.text and why.endswith("captured since the start; it is estimated")


def test_costs_that_cannot_be_replaced_are_measured_for_this_start_alone(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that came with an image is there to be read."""
    path = tmp_path / "costs.json"
    with LLM(model, costs=str(path), **SETTINGS):
        pass
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(cost_file, "replace_file", refuse)
    with LLM(model, costs=str(path), **SETTINGS, **OTHER_SIZES) as llm:
        assert llm.costs is not None
        assert {s.size for s in llm.costs.samples if s.way == "piecewise graph"} == {4, 16}
    assert "cannot be written: read-only file system" in caplog.text and path.read_bytes() == before


def test_costs_of_a_larger_ladder_hold_for_a_part_of_it(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    settings = SETTINGS | {"token_sizes": (4, 8, 16)}
    with LLM(model, costs=str(path), **settings):
        pass
    before = path.read_bytes()
    with LLM(model, costs=str(path), **(settings | {"token_sizes": (8, 16)})):
        assert path.read_bytes() == before


def test_costs_of_another_ladder_are_estimates_where_graphs_come_later(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "costs.json"
    with LLM(model, costs=str(path), **SETTINGS):
        pass
    before = path.read_bytes()
    with LLM(model, costs=str(path), capture="background", **SETTINGS, **OTHER_SIZES) as llm:
        why = why_costs(llm)
        assert llm.costs is not None and why is not None and why.endswith("is estimated") and why in caplog.text
    assert path.read_bytes() == before


def test_without_graphs_nothing_is_measured_or_written(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with LLM(model, costs=str(path), mode="none", **SETTINGS) as llm:
        assert llm.costs is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("settings", "resolved"),
    [({}, "order"), ({"costs": "c.json"}, "measured"), ({"dispatch": "measured"}, "measured")],
)
def test_auto_is_measured_where_costs_are_named(settings: dict[str, Any], resolved: str) -> None:
    config, reasons = resolve_engine_config(EngineConfig(**settings), "cpu", 512, "float32")
    assert config.dispatch == resolved
    assert ("dispatch" in reasons) == ("dispatch" not in settings)


@pytest.mark.parametrize(
    "settings", [{"dispatch": "order", "costs": "c.json"}, {"costs": ""}, {"costs": 3}, {"dispatch": "fastest"}]
)
def test_settings_that_contradict(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**settings)


# --- a step that is asked about ---------------------------------------------------------------------


def resolved() -> EngineConfig:
    return resolve_engine_config(EngineConfig(**SETTINGS), "cpu", 512, "float32")[0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"num_decodes": 2}, (2, 2, 1, 64)),
        ({"num_decodes": 2, "context_tokens": 20}, (2, 2, 1, 32)),
        ({"num_prefill_tokens": 16}, (16, 1, None, 32)),
        ({"num_decodes": 1, "num_prefill_tokens": 15, "context_tokens": 5}, (16, 2, None, 32)),
    ],
)
def test_what_a_query_is_as_a_batch(asked: dict[str, int], expected: tuple[int, ...]) -> None:
    asked = {"context_tokens": 60, **asked}
    live = StepQuery(**asked).live(resolved(), (32, 64))
    if "num_prefill_tokens" in asked and "num_decodes" not in asked:
        assert live.context_tokens == 32, "a prompt's own length, not that of decodes"
    assert (live.num_tokens, live.num_reqs, live.uniform_query_len, live.context_tokens) == expected


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "nothing"),
        ({"num_decodes": -1}, "num_decodes -1"),
        ({"num_prefill_tokens": True}, "num_prefill_tokens True"),
        ({"num_decodes": 1, "context_tokens": 0}, "context_tokens 0"),
        ({"num_decodes": 3, "context_tokens": 5}, "3 requests is above max_num_reqs 2"),
        ({"num_decodes": 2, "num_prefill_tokens": 1, "context_tokens": 5}, "3 requests is above max_num_reqs 2"),
        ({"num_prefill_tokens": 17}, "17 tokens is above max_num_batched_tokens 16"),
        ({"num_decodes": 1, "context_tokens": 65}, "65 tokens of context is above max_model_len 64"),
    ],
)
def test_bad_queries(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(OstinatoError, match=words):
        StepQuery(**asked).live(resolved(), None)
