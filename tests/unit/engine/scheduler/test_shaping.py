"""Steps fitted to buckets: what is cut, who waits, and that it costs no more than it may."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.scheduler import BatchShaper, Scheduler


def make(*, decode_sizes: Any = (), token_sizes: Any = (), **limits: int) -> tuple[Scheduler, BatchShaper]:
    shaper = BatchShaper(decode_sizes=decode_sizes, token_sizes=token_sizes)
    chosen = {"max_num_reqs": 8, "max_num_batched_tokens": 64, "max_model_len": 4096} | limits
    return Scheduler(allocator=PageAllocator(3000, 4), shaper=shaper, **chosen), shaper


def add(scheduler: Scheduler, name: str, prompt_len: int = 1, *, max_tokens: int = 16, **fields: Any) -> Request:
    params = SamplingParams(max_tokens=max_tokens)
    request = Request(request_id=name, prompt_token_ids=[0] * prompt_len, params=params, **fields)
    scheduler.add(request)
    return request


def step(scheduler: Scheduler, now: float | None = None) -> list[tuple[str, int]]:
    batch = scheduler.schedule(now=now)
    scheduler.complete(batch, {request.request_id: 7 for request in batch.sampling})
    return [(item.request.request_id, item.num_new_tokens) for item in batch.items]


def test_a_prompt_that_takes_two_steps_anyway_is_cut_on_a_bucket() -> None:
    scheduler, shaper = make(token_sizes=(16, 48), max_num_batched_tokens=60)
    add(scheduler, "a", 64)
    assert [step(scheduler), step(scheduler)] == [[("a", 48)], [("a", 16)]], "60 and 4 would pad 12"
    assert shaper.num_cut_chunks == 1


def test_the_last_chunk_too_is_brought_to_a_bucket() -> None:
    scheduler, _ = make(token_sizes=(8, 60), max_num_batched_tokens=64)
    add(scheduler, "a", 68)
    assert [step(scheduler), step(scheduler)] == [[("a", 60)], [("a", 8)]], "64 fits no bucket, so it does not pad"


def test_decodes_of_the_step_count_toward_the_bucket() -> None:
    scheduler, _ = make(token_sizes=(32, 48, 64), max_num_batched_tokens=63)
    add(scheduler, "decodes")
    step(scheduler)
    add(scheduler, "a", 78)
    assert step(scheduler) == [("decodes", 1), ("a", 47)], "62 would leave a step of 17"
    assert step(scheduler) == [("decodes", 1), ("a", 31)]


def test_nothing_is_cut_that_would_take_a_step_more() -> None:
    scheduler, shaper = make(token_sizes=(10,), max_num_batched_tokens=16)
    add(scheduler, "a", 31)
    assert [step(scheduler), step(scheduler)] == [[("a", 16)], [("a", 15)]]
    assert shaper.num_cut_chunks == 0


def test_nothing_is_cut_while_somebody_waits_for_the_budget() -> None:
    scheduler, _ = make(token_sizes=(16, 48), max_num_batched_tokens=60)
    add(scheduler, "a", 64)
    add(scheduler, "b", 4)
    assert step(scheduler) == [("a", 60)]


@given(
    prompt_len=st.integers(1, 300),
    budget=st.integers(1, 64),
    token_sizes=st.sets(st.integers(1, 64)),
    num_decodes=st.integers(0, 4),
)
def test_a_shaped_prompt_takes_as_many_steps_and_pads_no_more(
    prompt_len: int, budget: int, token_sizes: set[int], num_decodes: int
) -> None:
    def steps(sizes: set[int]) -> list[int]:
        scheduler, _ = make(token_sizes=sizes, max_num_batched_tokens=budget + num_decodes, max_num_reqs=5)
        for number in range(num_decodes):
            add(scheduler, str(number), max_tokens=3000)
        if num_decodes:
            step(scheduler)
        request = add(scheduler, "a", prompt_len)
        totals = []
        while not request.num_output_tokens:
            totals.append(sum(n for _, n in step(scheduler)))
        return totals

    def padding(totals: list[int]) -> int:
        return sum(min((s - n for s in token_sizes if s >= n), default=0) for n in totals)

    shaped, plain = steps(token_sizes), steps(set())
    assert len(shaped) == len(plain)
    assert sum(shaped) == sum(plain)
    assert padding(shaped) <= padding(plain)


def test_admission_just_over_a_bucket_waits_one_step_and_no_more() -> None:
    scheduler, shaper = make(decode_sizes=(2, 4))
    add(scheduler, "a")
    add(scheduler, "b")
    step(scheduler)
    add(scheduler, "c")
    assert step(scheduler) == [("a", 1), ("b", 1)]
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 1)]
    add(scheduler, "d")
    assert ("d", 1) in step(scheduler), "a padded row was free"
    assert shaper.num_waits == 1


def test_whoever_waited_need_not_grow_the_batch() -> None:
    scheduler, _ = make(decode_sizes=(2, 4))
    add(scheduler, "a", max_tokens=16)
    ends = add(scheduler, "b", max_tokens=2)
    step(scheduler)
    add(scheduler, "c")
    step(scheduler)
    scheduler.abort(ends.request_id)
    assert step(scheduler) == [("a", 1), ("c", 1)], "two rows, where three would have been four"


def test_requests_that_fill_the_next_bucket_do_not_wait() -> None:
    scheduler, shaper = make(decode_sizes=(2, 4))
    add(scheduler, "a")
    add(scheduler, "b")
    step(scheduler)
    add(scheduler, "c")
    add(scheduler, "d")
    assert len(step(scheduler)) == 4
    assert shaper.num_waits == 0


def test_an_empty_step_keeps_nobody_waiting() -> None:
    scheduler, _ = make(decode_sizes=(1,))
    add(scheduler, "a")
    assert step(scheduler) == [("a", 1)]


def two_running_and_one_with_a_deadline(deadline: float | None) -> list[tuple[str, int]]:
    scheduler, _ = make(decode_sizes=(2, 4))
    add(scheduler, "a")
    add(scheduler, "b")
    for now in (0.0, 1.0, 2.0):  # steps of a second
        step(scheduler, now)
    add(scheduler, "c", max_tokens=4, deadline=deadline)
    return step(scheduler, 3.0)


def test_a_deadline_that_the_wait_could_break_is_not_risked() -> None:
    assert ("c", 1) in two_running_and_one_with_a_deadline(3.0 + 6.0), "it needs five steps of a second"
    assert ("c", 1) not in two_running_and_one_with_a_deadline(3.0 + 60.0)
    assert ("c", 1) not in two_running_and_one_with_a_deadline(None)


def test_a_deadline_is_not_risked_before_a_step_was_timed() -> None:
    scheduler, _ = make(decode_sizes=(1, 4))
    add(scheduler, "a")
    step(scheduler)
    add(scheduler, "b", deadline=1e9)
    assert ("b", 1) in step(scheduler, 5.0)
