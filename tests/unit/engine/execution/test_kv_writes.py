"""A step writes the slots of its own live tokens and slot 0 of the null page, and no other (PITFALLS 11, 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ostinato.engine.execution import Executor
from ostinato.engine.request import FinishReason, Request
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.runtime import HostSlots, RuntimeMode

if TYPE_CHECKING:
    from .conftest import ExecutorMaker

# mode, attention that may be in any graph, runtime modes that steps take
MODES = [
    ("none", False, {"EAGER"}),
    ("piecewise", False, {"PIECEWISE"}),
    ("full_decode_only", False, {"FULL", "EAGER"}),
    ("full_and_piecewise", False, {"FULL", "PIECEWISE"}),
    ("full", True, {"FULL"}),
    ("auto", True, {"FULL", "PIECEWISE"}),  # full graphs of small mixed steps too
]
SETTINGS = {"auto": {"full_mixed_max_tokens": 8}}


def check_step(executor: Executor, batch: ScheduledBatch, helpers: Any) -> torch.Tensor:
    before = [flat.clone() for flat in helpers.flat_caches(executor)]
    logits = executor.execute(batch).logits.clone()
    assert logits.isfinite().all(), "a slot that nobody wrote was read"
    live = set(helpers.BatchMaker(executor).slots(batch.items, new_only=True))
    assert 0 not in live
    changed = helpers.changed_slots(before, helpers.flat_caches(executor))
    assert changed - {0} == live
    for flat in helpers.flat_caches(executor):
        assert flat[sorted(live)].isfinite().all()
        assert flat[1 : executor._page_size].isnan().all(), "a padded row wrote past slot 0 of the null page"
    return logits


@pytest.mark.parametrize(("mode", "always", "taken"), MODES)
def test_steps_of_every_size(
    shared_executor: ExecutorMaker, helpers: Any, mode: str, always: bool, taken: set[str]
) -> None:
    executor = shared_executor(mode=mode, always=always, **SETTINGS.get(mode, {}))
    make = helpers.BatchMaker(executor)
    counted = executor.graphed.counters.by_runtime_mode.copy()
    # From large to small: rows that a larger step left behind would be written again.
    for num_tokens in (24, 23, 17, 16, 15, 9, 8, 7, 1):
        check_step(executor, make([(6, num_tokens)]), helpers)
    for num_reqs in (6, 5, 4, 3, 2, 1):
        check_step(executor, make([(7 * n + 3, 1) for n in range(num_reqs)], is_decode=True), helpers)
    for parts in ([(250, 1), (260, 20)], [(9, 1), (5, 5), (0, 3)], [(0, 1)]):
        check_step(executor, make(parts), helpers)
    assert set(executor.graphed.counters.by_runtime_mode - counted) == taken


@pytest.mark.parametrize(("mode", "always", "taken"), MODES)
def test_a_whole_service(
    shared_executor: ExecutorMaker, helpers: Any, mode: str, always: bool, taken: set[str]
) -> None:
    """Chunked prefill, arrivals between steps, preemption and reuse of pages; every step's writes are looked at."""
    executor = shared_executor(mode=mode, always=always, **SETTINGS.get(mode, {}))
    for flat in helpers.flat_caches(executor):
        flat.fill_(float("nan"))
        flat[0] = 0.0
    serving = helpers.Serving(executor, kv_pages=22)  # 84 tokens
    counted = executor.graphed.counters.by_runtime_mode.copy()
    random = torch.Generator().manual_seed(3)
    arrivals = [(1, 9), (30, 12), (5, 20), (2, 30), (40, 6), (7, 11), (1, 3), (13, 25)]  # prompt, output tokens
    requests: list[Request] = []
    while arrivals or serving.scheduler.has_work():
        if arrivals:
            num_prompt, _ = arrivals[0]
            prompt = torch.randint(272, (num_prompt,), generator=random).tolist()
            requests.append(Request(request_id=str(len(requests)), prompt_token_ids=prompt))
            serving.scheduler.add(requests[-1])
            requests[-1].max_output = arrivals.pop(0)[1]  # type: ignore[attr-defined]
        batch = serving.scheduler.schedule()
        serving.num_preempted += len(batch.preempted)
        logits = check_step(executor, batch, helpers)
        sampling = [item.request for item in batch.items if item.samples]
        tokens = logits.argmax(-1).tolist()
        serving.scheduler.complete(batch, {r.request_id: t for r, t in zip(sampling, tokens, strict=True)})
        for request in sampling:
            if len(request.output_token_ids) >= request.max_output:  # type: ignore[attr-defined]
                pages = request.pages
                serving.scheduler.finish(request, FinishReason.STOP)
                for flat in helpers.flat_caches(executor):  # whoever gets these pages must write before it reads
                    flat.view(-1, executor._page_size, *flat.shape[1:])[pages] = float("nan")
        serving.allocator.check_integrity([r.pages for r in requests])
    assert serving.num_preempted > 0
    assert serving.allocator.num_free_pages == 21
    assert set(executor.graphed.counters.by_runtime_mode - counted) == taken


def test_the_check_notices_stale_slots(
    shared_executor: ExecutorMaker, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant PITFALL 14: the tail of the slot mapping keeps what a larger step left there."""
    executor = shared_executor(mode="full_and_piecewise")
    make = helpers.BatchMaker(executor)
    write = executor._writer.write

    def forgetful(host: HostSlots, batch: ScheduledBatch) -> None:
        stale = host["slot_mapping"].clone()
        write(host, batch)
        host["slot_mapping"][batch.num_tokens :] = stale[batch.num_tokens :]

    monkeypatch.setattr(executor._writer, "write", forgetful)
    assert executor.graphed.decide(executor._live_batch(make([(9, 1)] * 3, is_decode=True))).key is not None
    executor.execute(make([(3, 1)] * 4, is_decode=True))
    with pytest.raises(AssertionError):
        check_step(executor, make([(9, 1)] * 3, is_decode=True), helpers)


def test_a_break_works_on_live_rows_alone(
    shared_executor: ExecutorMaker, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = shared_executor(mode="full_and_piecewise")
    rows: list[int] = []
    write_kv = executor._attention.write_kv

    def spy(k: torch.Tensor, *rest: Any) -> None:
        rows.append(k.shape[0])
        write_kv(k, *rest)

    monkeypatch.setattr(executor._attention, "write_kv", spy)
    batch = helpers.BatchMaker(executor)([(0, 9)])
    decision = helpers.decision_for(executor, batch)
    assert decision.runtime_mode is RuntimeMode.PIECEWISE and decision.padded_tokens == 16
    executor.execute(batch)
    assert rows == [9, 9]  # two layers
