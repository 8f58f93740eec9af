"""Scheduler cases worth reading one by one: chunks, order, preemption, limits, ends and misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import FinishReason, Request
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.errors import ConfigError, EngineError, OutOfMemoryError, RequestError


def make(*, num_pages: int = 100, page_size: int = 4, **limits: int) -> tuple[Scheduler, PageAllocator]:
    allocator = PageAllocator(num_pages, page_size)
    chosen = {"max_num_reqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64} | limits
    return Scheduler(allocator=allocator, **chosen), allocator


def make_request(name: str, prompt_len: int, **fields: Any) -> Request:
    return Request(request_id=name, prompt_token_ids=list(range(prompt_len)), **fields)


def shape(batch: ScheduledBatch) -> list[tuple[str, int, int, bool]]:
    return [(i.request.request_id, i.start, i.num_new_tokens, i.samples) for i in batch.items]


def step(scheduler: Scheduler) -> ScheduledBatch:
    batch = scheduler.schedule()
    scheduler.complete(batch, {item.request.request_id: 7 for item in batch.items if item.samples})
    return batch


def test_a_long_prompt_is_chunked_and_samples_at_its_end_only() -> None:
    scheduler, _ = make(max_num_batched_tokens=4)
    request = make_request("a", 10)
    scheduler.add(request)
    assert shape(step(scheduler)) == [("a", 0, 4, False)]
    assert len(request.pages) == 1, "pages come with the chunks"
    assert shape(step(scheduler)) == [("a", 4, 4, False)]
    assert request.output_token_ids == []
    assert shape(step(scheduler)) == [("a", 8, 2, True)]
    assert shape(step(scheduler)) == [("a", 10, 1, True)]
    assert request.output_token_ids == [7, 7]


def test_decodes_come_first_and_the_rest_of_the_budget_goes_to_prompts_in_order() -> None:
    scheduler, _ = make(max_num_batched_tokens=6)
    for name, prompt_len in (("a", 2), ("b", 7), ("c", 2)):
        scheduler.add(make_request(name, prompt_len))
    assert shape(step(scheduler)) == [("a", 0, 2, True), ("b", 0, 4, False)]
    batch = step(scheduler)
    assert shape(batch) == [("a", 2, 1, True), ("b", 4, 3, True), ("c", 0, 2, True)]
    assert (batch.num_tokens, batch.num_reqs, batch.uniform_query_len) == (6, 3, None)
    batch = step(scheduler)
    assert shape(batch) == [("a", 3, 1, True), ("b", 7, 1, True), ("c", 2, 1, True)]
    assert batch.uniform_query_len == 1


def test_a_one_token_prompt_is_a_prefill() -> None:
    scheduler, _ = make()
    scheduler.add(make_request("a", 1))
    assert step(scheduler).uniform_query_len is None
    later = scheduler.schedule()
    assert later.uniform_query_len == 1
    scheduler.complete(later, {"a": 7})
    assert later.uniform_query_len == 1, "a batch does not change when its requests move on"


def test_an_empty_batch_has_no_uniform_length() -> None:
    scheduler, _ = make()
    batch = scheduler.schedule()
    assert (batch.items, batch.num_tokens, batch.uniform_query_len) == ((), 0, None)
    assert not scheduler.has_work()


def test_at_most_max_num_reqs_run() -> None:
    scheduler, _ = make(max_num_reqs=2)
    requests = [make_request(name, 1) for name in "abc"]
    for request in requests:
        scheduler.add(request)
    assert step(scheduler).num_reqs == 2
    assert scheduler.waiting == (requests[2],)
    scheduler.finish(requests[0], FinishReason.STOP)
    assert [name for name, *_ in shape(step(scheduler))] == ["b", "c"]


def test_the_youngest_is_preempted_and_resumes_with_its_outputs() -> None:
    scheduler, allocator = make(num_pages=6, page_size=2)  # 5 usable pages
    old, young = make_request("old", 2), make_request("young", 2)
    scheduler.add(old)
    scheduler.add(young)
    for _ in range(3):
        step(scheduler)  # old and young: 2 pages each, full at 4 computed tokens
    assert (old.num_tokens, young.num_tokens, allocator.num_free_pages) == (5, 5, 1)
    batch = step(scheduler)  # old takes the last page; young is short of one but keeps its own
    assert shape(batch) == [("old", 4, 1, True)] and batch.preempted == ()
    step(scheduler)
    batch = step(scheduler)  # old needs another page: now young has to give its pages back
    assert shape(batch) == [("old", 6, 1, True)]
    assert batch.preempted == (young,)
    assert (young.pages, young.num_computed_tokens, young.num_preemptions) == ([], 0, 1)
    assert young.output_token_ids == [7, 7, 7]
    assert scheduler.waiting == (young,)
    scheduler.finish(old, FinishReason.STOP)
    batch = step(scheduler)
    assert shape(batch) == [("young", 0, 5, True)]
    assert batch.uniform_query_len is None, "recomputing is a prefill"
    assert young.output_token_ids == [7, 7, 7, 7]


def test_a_preempted_request_goes_before_those_that_never_ran() -> None:
    scheduler, _ = make(num_pages=5, page_size=1, max_num_reqs=2)
    requests = [make_request(name, 1) for name in "abc"]
    for request in requests:
        scheduler.add(request)
    while not requests[1].num_preemptions:
        step(scheduler)
    assert scheduler.waiting == (requests[1], requests[2])


def test_admission_leaves_running_requests_a_page_to_grow() -> None:
    scheduler, allocator = make(num_pages=4, page_size=2)
    scheduler.add(make_request("a", 2))
    scheduler.add(make_request("b", 4))
    assert shape(step(scheduler)) == [("a", 0, 2, True)]
    assert allocator.num_free_pages == 2, "b would fit, and a could not grow"


def test_nobody_overtakes_the_head_of_the_line() -> None:
    scheduler, _ = make(num_pages=6, page_size=2)
    scheduler.add(make_request("a", 4))
    scheduler.add(make_request("big", 8))
    scheduler.add(make_request("small", 1))
    assert [name for name, *_ in shape(step(scheduler))] == ["a"]


def test_a_prompt_that_never_fits_is_ended_at_once_and_others_go_on() -> None:
    scheduler, _ = make(num_pages=3, page_size=4)
    big, small = make_request("big", 9), make_request("small", 8)
    scheduler.add(big)
    scheduler.add(small)
    assert scheduler.has_work()
    assert shape(step(scheduler)) == [("small", 0, 8, True)]
    assert scheduler.take_failed() == [big]
    assert scheduler.take_failed() == []
    assert big.finish_reason is FinishReason.ERROR
    assert isinstance(big.error, OutOfMemoryError) and "kv_tokens" in big.error.fix


def test_an_ended_request_is_work_until_it_is_taken() -> None:
    scheduler, _ = make(num_pages=2, page_size=4)
    scheduler.add(make_request("big", 9))
    assert scheduler.has_work()
    scheduler.take_failed()
    assert not scheduler.has_work()


def test_a_request_that_outgrows_all_pages_is_ended_and_keeps_its_outputs() -> None:
    scheduler, allocator = make(num_pages=3, page_size=2)
    request = make_request("a", 3)
    scheduler.add(request)
    while not request.is_finished:
        step(scheduler)
    assert scheduler.take_failed() == [request]
    assert request.finish_reason is FinishReason.ERROR and isinstance(request.error, OutOfMemoryError)
    assert len(request.output_token_ids) == 2
    assert allocator.num_free_pages == 2


def test_a_request_at_max_model_len_is_ended_by_length() -> None:
    scheduler, _ = make(max_model_len=5)
    request = make_request("a", 3)
    scheduler.add(request)
    for _ in range(4):
        step(scheduler)
    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_tokens == 5
    assert scheduler.take_failed() == [request]


def test_abort_works_waiting_running_and_in_the_middle_of_a_step() -> None:
    scheduler, allocator = make(max_num_reqs=2)
    a, b, c = (make_request(name, 5) for name in "abc")
    for request in (a, b, c):
        scheduler.add(request)
    batch = scheduler.schedule()
    assert scheduler.abort("c") is c and c.finish_reason is FinishReason.ABORT
    assert scheduler.abort("a") is a
    assert scheduler.abort("a") is None and scheduler.abort("nobody") is None
    allocator.check_integrity([b.pages])
    scheduler.complete(batch, {"a": 1, "b": 2})
    assert (a.output_token_ids, b.output_token_ids) == ([], [2])
    assert scheduler.running == (b,)


def test_finish_takes_an_error_and_is_idempotent() -> None:
    scheduler, _ = make()
    request, error = make_request("a", 2), EngineError("NaN")
    scheduler.add(request)
    step(scheduler)
    scheduler.finish(request, FinishReason.ERROR, error)
    scheduler.finish(request, FinishReason.STOP)
    assert request.finish_reason is FinishReason.ERROR and request.error is error
    with pytest.raises(EngineError, match="not in the scheduler"):
        scheduler.finish(make_request("b", 1), FinishReason.STOP)


def test_an_id_may_be_used_again_only_after_its_request_ended() -> None:
    scheduler, _ = make()
    first, second = make_request("a", 2), make_request("a", 2)
    scheduler.add(first)
    with pytest.raises(RequestError, match="already in use"):
        scheduler.add(second)
    scheduler.abort("a")
    scheduler.add(second)
    assert scheduler.waiting == (second,)


@pytest.mark.parametrize(
    "request_",
    [
        make_request("empty", 0),
        make_request("long", 64),
        make_request("done", 3, finish_reason=FinishReason.STOP),
        make_request("begun", 3, num_computed_tokens=2),
        make_request("paged", 3, pages=[1]),
    ],
    ids=lambda request: request.request_id,
)
def test_requests_that_cannot_run_are_refused(request_: Request) -> None:
    scheduler, _ = make()
    with pytest.raises(RequestError):
        scheduler.add(request_)
    assert not scheduler.has_work()


def test_complete_is_all_or_nothing() -> None:
    scheduler, _ = make()
    a, b = make_request("a", 2), make_request("b", 2)
    scheduler.add(a)
    scheduler.add(b)
    batch = scheduler.schedule()
    with pytest.raises(EngineError, match="no token was sampled"):
        scheduler.complete(batch, {"a": 1})
    assert a.num_computed_tokens == 0 and a.output_token_ids == []
    scheduler.complete(batch, {"a": 1, "b": 2})
    with pytest.raises(EngineError, match="out of order"):
        scheduler.complete(batch, {"a": 1, "b": 2})
    assert a.output_token_ids == [1]


def test_scheduling_again_without_completing_repeats_the_step() -> None:
    scheduler, allocator = make()
    request = make_request("a", 6)
    scheduler.add(request)
    first, pages = scheduler.schedule(), list(request.pages)
    assert shape(scheduler.schedule()) == shape(first)
    assert request.pages == pages
    allocator.check_integrity([pages])


def test_limits_must_be_positive() -> None:
    for name in ("max_num_reqs", "max_num_batched_tokens", "max_model_len"):
        with pytest.raises(ConfigError):
            make(**{name: 0})


def test_an_array_of_tokens_has_one_for_each_that_samples() -> None:
    scheduler, _ = make()
    scheduler.add(make_request("a", 3))
    scheduler.add(make_request("b", 3))
    batch = scheduler.schedule()
    with pytest.raises(EngineError, match="not one token for each"):
        scheduler.complete(batch, np.array([7]))
    scheduler.complete(batch, np.array([7, 8]))
    assert [request.output_token_ids for request in batch.sampling] == [[7], [8]]
