"""An executor's life: what it captures, what it reports, what it refuses, and what it gives back."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import Executor, load_model
from ostinato.engine.execution.captures import Captures
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import LinearShape
from ostinato.engine.request import SamplingParams
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.errors import ClosedError, ConfigError, OutOfMemoryError, TensorReboundError
from ostinato.runtime import GraphKey, Mode, Reason, ReservedRegions, RuntimeMode
from ostinato.testing.sampling import choose_for

if TYPE_CHECKING:
    from .conftest import ExecutorMaker


@pytest.mark.parametrize(
    ("mode", "always", "resolved", "counts"),
    [
        ("none", False, Mode.NONE, {}),
        ("piecewise", False, Mode.PIECEWISE, {"PIECEWISE": 3}),
        ("full_decode_only", False, Mode.FULL_DECODE_ONLY, {"FULL": 6}),
        ("full_and_piecewise", False, Mode.FULL_AND_PIECEWISE, {"PIECEWISE": 3, "FULL": 6}),
        ("full", False, Mode.FULL_AND_PIECEWISE, {"PIECEWISE": 3, "FULL": 6}),  # attention allows no mixed graph
        ("full", True, Mode.FULL, {"FULL": 12}),
    ],
)
def test_what_each_mode_captures(
    shared_executor: ExecutorMaker, mode: str, always: bool, resolved: Mode, counts: dict[str, int]
) -> None:
    graphed = shared_executor(mode=mode, always=always).graphed
    assert graphed.mode.mode is resolved
    assert set(graphed.plans) == set(graphed.keys)
    found: dict[str, int] = {}
    for key in graphed.plans:
        found[key.runtime_mode.value] = found.get(key.runtime_mode.value, 0) + 1
    assert found == counts
    for key, plan in graphed.plans.items():
        # Two layers: a break for each attention, and segments around them.
        assert (plan.num_segments, len(plan.breaks)) == ((1, 0) if key.runtime_mode is RuntimeMode.FULL else (3, 2))


def test_progress_is_told_of_each_key_twice(tiny_dir: Callable[[str], Path], make_executor: ExecutorMaker) -> None:
    settings: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "kv_tokens": 64, "max_num_reqs": 2}
    config = EngineConfig(model=str(tiny_dir("llama")), max_num_batched_tokens=16, **settings)
    executor = Executor(load_model(config))
    told: list[GraphKey] = []
    captures = Captures(executor)
    captures.start(on_key=told.append)
    keys = executor.graphed.keys
    assert len(keys) == 3 and told == keys + keys and captures.seconds > 0
    executor.close()


def test_sizes_past_the_largest_bucket_are_eager_with_a_reason(make_executor: ExecutorMaker, helpers: Any) -> None:
    executor = make_executor(mode="full_and_piecewise", decode_sizes=(2,), token_sizes=(8,))
    make = helpers.BatchMaker(executor)
    for parts, is_decode, mode, reason in [
        ([(5, 1)] * 2, True, RuntimeMode.FULL, Reason.EXACT),
        ([(5, 1)] * 3, True, RuntimeMode.PIECEWISE, Reason.PADDED),
        ([(0, 8)], False, RuntimeMode.PIECEWISE, Reason.EXACT),
        ([(0, 9)], False, RuntimeMode.EAGER, Reason.OVER_LARGEST),
    ]:
        batch = make(parts, is_decode=is_decode)
        decision = helpers.decision_for(executor, batch)
        assert (decision.runtime_mode, decision.reason) == (mode, reason)
        assert executor.execute(batch).logits.isfinite().all()
    snapshot = executor.graphed.counters.snapshot()
    assert snapshot["by_runtime_mode"] == {"FULL": 1, "PIECEWISE": 2, "EAGER": 1}


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_an_exception_in_a_step_leaves_it_repeatable(
    shared_executor: ExecutorMaker, helpers: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The model fails half way through, after a layer has written its keys; the same batch then runs as ever."""
    executor = shared_executor(mode=mode)
    batch = helpers.BatchMaker(executor)([(4, 9)])
    before = [flat.clone() for flat in helpers.flat_caches(executor)]
    expected = executor.execute(batch).logits.clone()
    for flat, old in zip(helpers.flat_caches(executor), before, strict=True):
        flat.copy_(old)
    attend, calls = executor._attention.attend, 0

    def fails_in_the_second_layer(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("planted")
        attend(*args)

    with monkeypatch.context() as patch:
        patch.setattr(executor._attention, "attend", fails_in_the_second_layer)
        with pytest.raises(RuntimeError, match="planted"):
            executor.execute(batch)
    assert torch.equal(executor.execute(batch).logits, expected)


def test_two_executors_do_not_disturb_each_other(make_executor: ExecutorMaker, helpers: Any) -> None:
    executors = [make_executor(family, mode="full_and_piecewise") for family in ("llama", "qwen3")]
    batches = []
    for executor in executors:
        make = helpers.BatchMaker(executor)
        batches.append(make([(9 * n + 2, 1) for n in range(3)], is_decode=True))
    alone = [executor.execute(batch).logits.clone() for executor, batch in zip(executors, batches, strict=True)]
    for _ in range(2):
        together = [executor.execute(batch).logits for executor, batch in zip(executors, batches, strict=True)]
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    executors[0].close()
    assert torch.equal(executors[1].execute(batches[1]).logits, alone[1])


def test_close_gives_the_memory_back(make_executor: ExecutorMaker, helpers: Any) -> None:
    executor = make_executor(mode="full_and_piecewise")
    batch = helpers.BatchMaker(executor)([(9, 1)], is_decode=True)
    executor.execute(batch)
    owned = [weakref.ref(executor.caches[0].key.untyped_storage()), weakref.ref(executor._model)]
    owned.append(weakref.ref(executor.token_counts.untyped_storage()))
    plans = [weakref.ref(plan.outputs) for plan in executor.graphed.plans.values()]
    assert executor.graphed.backend.memory().reserved_bytes > 0
    executor.close()
    executor.close()
    gc.collect()
    assert [ref() for ref in owned + plans] == [None] * len(owned + plans)
    assert executor.graphed.backend.memory().reserved_bytes == 0
    with pytest.raises(ClosedError):
        executor.execute(batch)


def test_a_cache_that_cannot_be_allocated(tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(ReservedRegions, "__init__", fails)
    loaded = load_model(EngineConfig(model=str(tiny_dir("llama")), device="cpu", kv_tokens=64))
    with pytest.raises(OutOfMemoryError, match="KV cache") as caught:
        Executor(loaded)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_token_counts_that_cannot_be_allocated(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr("ostinato.engine.execution.executor.allocate_counts", fails)
    loaded = load_model(EngineConfig(model=str(tiny_dir("llama")), device="cpu", kv_tokens=64))
    with pytest.raises(OutOfMemoryError, match=r"token counts .* lower max_num_reqs: each request takes 544 bytes"):
        Executor(loaded)


# --- the choice of tokens -------------------------------------------------------------------------

KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.0, "seed": 2},
    {"temperature": 5.0, "top_k": 4, "seed": 3},
    {"temperature": 3.0, "top_p": 0.7, "seed": 4},
    {"temperature": 3.0, "min_p": 0.2, "seed": 5},
    {"repetition_penalty": 5.0, "presence_penalty": 2.0},
    {"temperature": 2.0, "frequency_penalty": -2.0, "seed": 6},
]


@pytest.mark.parametrize("mode", ["none", "piecewise", "full_and_piecewise"])
def test_one_graph_serves_all_settings(shared_executor: ExecutorMaker, helpers: Any, mode: str) -> None:
    """Replays of one key follow the settings of each step, row by row, and write no logits."""
    executor = shared_executor(mode=mode)
    batch = helpers.BatchMaker(executor)([(9, 1), (5, 1), (12, 1)], is_decode=True)
    chosen, keys = [], set()
    for turn in range(len(KINDS)):
        for row, item in enumerate(batch.items):
            item.request.params = SamplingParams(**KINDS[(turn + 3 * row) % len(KINDS)])
        fresh = ScheduledBatch(tuple(item._replace(request=replace(item.request)) for item in batch.items))
        keys.add(helpers.decision_for(executor, fresh).key)
        output = executor.execute(fresh)
        expected = choose_for(output.logits.clone(), fresh.sampling)
        assert output.token_ids.tolist() == expected.token_ids.tolist()
        chosen.append(tuple(output.token_ids.tolist()))
    assert len(keys) == 1 and len(set(chosen)) > 4
    assert (keys.pop() is None) is (mode == "none")


def test_a_prompt_in_a_mixed_full_graph_is_sampled_beside_decodes(shared_executor: ExecutorMaker, helpers: Any) -> None:
    executor = shared_executor(mode="full", always=True)
    batch = helpers.BatchMaker(executor)([(9, 1), (0, 5), (8, 7)], partial=1)
    for item, kind in zip(batch.items, (1, 7, 6), strict=True):
        item.request.params = SamplingParams(**KINDS[kind])
    assert helpers.decision_for(executor, batch).runtime_mode is RuntimeMode.FULL
    counts = executor.token_counts.clone()
    output = executor.execute(batch)
    expected = choose_for(output.logits.clone(), batch.sampling)
    assert output.token_ids.tolist() == expected.token_ids.tolist() and len(batch.sampling) == 2
    changed = (executor.token_counts != counts).any(1).nonzero().flatten().tolist()
    assert len(changed) == 1, "only the request that samples and has penalties is counted"


def test_token_counts_that_were_replaced_are_noticed(make_executor: ExecutorMaker, helpers: Any) -> None:
    executor = make_executor(mode="full_decode_only")
    batch = helpers.BatchMaker(executor)([(9, 1)], is_decode=True)
    executor.execute(batch)
    executor._token_counts = executor._token_counts.clone()
    with pytest.raises(TensorReboundError, match="_token_counts"):
        executor.execute(batch)


def test_without_a_kernel_for_graphs_only_the_likeliest_are_chosen_in_them(
    make_executor: ExecutorMaker, helpers: Any
) -> None:
    """As on CUDA without triton."""
    executor = make_executor(mode="full_decode_only")
    executor._sampling_head.draws_in_graphs = False
    batch = helpers.BatchMaker(executor)([(9, 1), (5, 1)], is_decode=True)
    assert helpers.decision_for(executor, batch).runtime_mode is RuntimeMode.FULL
    for params in (SamplingParams(temperature=1.0), SamplingParams(presence_penalty=1.0)):
        request = replace(batch.items[1].request, params=params)
        drawn = ScheduledBatch((batch.items[0], batch.items[1]._replace(request=request)))
        decision = helpers.decision_for(executor, drawn)
        assert (decision.runtime_mode, decision.reason) == (RuntimeMode.EAGER, Reason.VETOED)
        assert "triton" in decision.alternatives[0].detail
        executor.execute(drawn)


def test_sizes_above_the_limits_are_refused(tiny_dir: Callable[[str], Path]) -> None:
    for sizes in ({"decode_sizes": (17,)}, {"token_sizes": (513,)}):  # the limits are the CPU's defaults
        with pytest.raises(ConfigError, match=next(iter(sizes))):
            load_model(EngineConfig(model=str(tiny_dir("llama")), device="cpu", **sizes))  # type: ignore[arg-type]


def test_linear_kernels_are_measured_when_asked(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[LinearShape], torch.device]] = []

    def measures(shapes: Any, *, device: torch.device, root: Path) -> LinearTable:
        asked.append((list(shapes), device))
        return LinearTable(choices=dict.fromkeys(asked[-1][0]))

    monkeypatch.setattr("ostinato.engine.execution.executor.tune_linears", measures)
    loaded = load_model(EngineConfig(model=str(tiny_dir("llama")), device="cpu", kv_tokens=64))
    Executor(loaded).close()
    assert asked == []
    config = dataclasses.replace(loaded.config, tune_linears=True)  # as it is on CUDA
    executor = Executor(dataclasses.replace(loaded, config=config))
    ((shapes, device),) = asked
    assert device == loaded.device
    assert {shape.num_rows for shape in shapes} == {1, 16, 32, 64, 128}
    assert {shape.dtype for shape in shapes} == {"float32"}
    executor.close()


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ((1, 1), [(1, 1)]),
        ((20, 40), [(40, 20), (1, 1), (16, 16), (32, 20)]),
        ((3, 200), [(200, 3), (1, 1), (16, 3), (32, 3), (64, 3), (128, 3)]),
    ],
)
def test_every_linear_kernel_runs_before_requests_come(
    tiny_dir: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    steps: list[tuple[int, int]],
) -> None:
    """A mode may have no graph that computes logits of so many rows, or none at all."""
    num_reqs, num_tokens = limits
    config = EngineConfig(
        model=str(tiny_dir("llama")),
        device="cpu",
        mode="piecewise",
        kv_tokens=64,
        max_model_len=64,
        max_num_reqs=num_reqs,
        max_num_batched_tokens=num_tokens,
    )
    executor = Executor(load_model(config))
    model, ran = executor.model, list[tuple[int, int]]()
    forward, compute_logits = model.forward, model.compute_logits
    monkeypatch.setattr(model, "forward", lambda ids, at: ran.append((len(ids), 0)) or forward(ids, at))

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        ran[-1] = (ran[-1][0], len(hidden))
        return compute_logits(hidden)

    monkeypatch.setattr(model, "compute_logits", logits)
    with torch.inference_mode():
        Captures(executor)._run_eager_steps()  # as `capture` does on CUDA
    assert ran == steps
    executor.leave_step()
    executor.close()


def test_without_cuda_there_is_nothing_to_measure(tiny_dir: Callable[[str], Path]) -> None:
    loaded = load_model(EngineConfig(model=str(tiny_dir("llama")), device="cpu", kv_tokens=64, tune_linears=True))
    assert loaded.config.tune_linears is False and "CUDA" in loaded.reasons["tune_linears"]
