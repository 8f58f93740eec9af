"""A backend that plans steps on the host: once a step, outside of graphs, with the answers of torch attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ostinato.engine.attention.flashinfer.backend import FlashInferAttention
from ostinato.engine.execution import Executor, memory_budget
from ostinato.engine.request import FinishReason, Request
from ostinato.runtime import RuntimeMode
from ostinato.runtime.breaks import is_planning, is_recording

if TYPE_CHECKING:
    from .conftest import ExecutorMaker

MODES = {
    "none": {"EAGER"},
    "piecewise": {"PIECEWISE"},
    "full_decode_only": {"FULL", "EAGER"},
    "full_and_piecewise": {"FULL", "PIECEWISE"},
}
PlannedMaker = Callable[..., Executor]


@pytest.fixture
def make_planned(
    make_executor: ExecutorMaker, fake_flashinfer: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Executor]:
    """Executors whose attention is `FlashInferAttention` around the stand-in package."""

    def make(**settings: Any) -> Executor:
        name = "ostinato.engine.execution.executor.get_attention_backend"
        monkeypatch.setattr(name, lambda *_: FlashInferAttention())
        executor = make_executor(**settings)
        assert set(executor.graphed.plans) == set(executor.graphed.keys), "a key could not be captured"
        return executor

    return make


def serve(executor: Executor, helpers: Any) -> list[list[int]]:
    """Greedy tokens of prompts of many lengths that come and go."""
    serving = helpers.Serving(executor)
    rng = random.Random(4)
    requests = [
        Request(request_id=str(index), prompt_token_ids=[rng.randrange(256) for _ in range(length)])
        for index, length in enumerate([1, 30, 7, 2, 16, 50, 3, 24])
    ]
    waiting = list(requests)
    while waiting or serving.scheduler.running:
        for request in waiting[:2]:
            serving.scheduler.add(request)
        waiting = waiting[2:]
        _, logits = serving.step()
        assert logits.isfinite().all()
        for request in requests:
            if len(request.output_token_ids) >= 5 and request in serving.scheduler.running:
                serving.scheduler.finish(request, FinishReason.LENGTH)
    return [request.output_token_ids for request in requests]


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_torch_attention(
    make_planned: PlannedMaker, shared_executor: ExecutorMaker, helpers: Any, mode: str
) -> None:
    executor = make_planned(mode=mode)
    assert serve(executor, helpers) == serve(shared_executor(mode="none"), helpers)
    assert set(executor.graphed.counters.snapshot()["by_runtime_mode"]) == MODES[mode]


def test_a_step_is_planned_once_and_attended_in_every_layer(
    make_planned: PlannedMaker, fake_flashinfer: Any, helpers: Any
) -> None:
    executor = make_planned(mode="full_and_piecewise", token_sizes=(16,))
    make = helpers.BatchMaker(executor)

    def counts() -> tuple[int, int]:
        return sum(w.num_plans for w in fake_flashinfer.made), sum(w.num_runs for w in fake_flashinfer.made)

    for parts, is_decode, bucket in [
        ([(9, 1)] * 3, True, 4),
        ([(0, 5), (3, 6)], False, None),
        ([(0, 20)], False, None),
    ]:
        plans, runs = counts()
        executor.execute(make(parts, is_decode=is_decode))
        assert counts()[0] == plans + 1
        if bucket is None:  # breaks and eager steps call the wrapper, a full graph holds what it launched
            assert counts()[1] == runs + 2, "two layers"
        else:
            (wrapper,) = (w for w in fake_flashinfer.made if getattr(w, "batch_size", None) == bucket)
            assert wrapper.last_page_len.tolist() == [2, 2, 2, 0], "the replayed bucket's own plan"


def test_nothing_is_planned_while_a_segment_is_recorded(
    make_planned: PlannedMaker, fake_flashinfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key is planned before its warm-up and before its capture, and never by the callable itself."""
    seen: list[tuple[int | None, bool]] = []
    real = FlashInferAttention.plan_step

    def plan_step(self: FlashInferAttention, **step: Any) -> None:
        seen.append((step["graph_num_reqs"], is_recording() or is_planning()))
        real(self, **step)

    monkeypatch.setattr(FlashInferAttention, "plan_step", plan_step)
    executor = make_planned(mode="full_and_piecewise")
    assert not any(inside for _, inside in seen)
    for key in executor.graphed.keys:
        if key.runtime_mode is RuntimeMode.FULL:
            assert [num_reqs for num_reqs, _ in seen].count(key.num_reqs) >= 2


def test_memory_is_reserved_before_the_caches_take_the_rest(
    make_planned: PlannedMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = FlashInferAttention.reserve
    monkeypatch.setattr(FlashInferAttention, "reserve", lambda *a: (order.append("reserve"), real(*a))[1])
    measure = memory_budget.available_bytes
    monkeypatch.setattr(memory_budget, "available_bytes", lambda device: (order.append("measure"), measure(device))[1])
    make_planned(mode="none")
    assert order[order.index("reserve") :][:2] == ["reserve", "measure"], "what kv_tokens asks for is measured against"


def test_steps_write_only_their_own_slots(make_planned: PlannedMaker, helpers: Any) -> None:
    executor = make_planned(mode="full_and_piecewise")
    make = helpers.BatchMaker(executor)
    for parts, is_decode in [([(7 * n + 3, 1) for n in range(5)], True), ([(9, 1), (5, 5), (0, 3)], False)]:
        batch = make(parts, is_decode=is_decode)
        before = [flat.clone() for flat in helpers.flat_caches(executor)]
        assert executor.execute(batch).logits.isfinite().all(), "a slot that nobody wrote was read"
        changed = helpers.changed_slots(before, helpers.flat_caches(executor))
        assert changed - {0} == set(make.slots(batch.items, new_only=True))


def test_a_shadow_plans_its_own_step_again(
    make_planned: PlannedMaker, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    real = FlashInferAttention.plan_step

    def plan_step(self: FlashInferAttention, **step: Any) -> None:
        seen.append({**step, "block_tables": step["block_tables"].clone()})
        real(self, **step)

    executor = make_planned(mode="full_and_piecewise", token_sizes=(16,), shadow_every=1)
    monkeypatch.setattr(FlashInferAttention, "plan_step", plan_step)
    serving = helpers.Serving(executor)
    serving.scheduler.add(Request(request_id="a", prompt_token_ids=[5, 6, 7]))
    serving.step()  # is kept
    serving.scheduler.add(Request(request_id="b", prompt_token_ids=[8] * 9))
    for _ in range(3):
        serving.step()
    kept, last, num_before = seen[0], seen[-1], len(seen)
    executor.finish_shadow()
    (again,) = seen[num_before:]
    assert tuple(again["query_lens"]) == tuple(kept["query_lens"]) != tuple(last["query_lens"])
    assert tuple(again["seq_lens"]) == (3,) and again["graph_num_reqs"] == kept["graph_num_reqs"]
    assert again["block_tables"].equal(kept["block_tables"])
    counts = executor.graphed.shadow_counts
    assert (counts.num_compared, counts.num_skipped, counts.num_dropped) == (1, 3, 0)
    assert all(executor.graphed.why_blocked(key) is None for key in executor.graphed.keys)
