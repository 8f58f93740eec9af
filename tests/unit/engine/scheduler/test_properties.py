"""Random traffic against the scheduler, with a KV cache simulated slot by slot.

Every scheduled token is written to its slot as (request, position, token), and before a chunk is
"computed" every earlier position is read back. A page that was shared, reused too early or not
recomputed after a preemption shows as a wrong entry.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.paging import PageAllocator, pages_for, slots_for
from ostinato.engine.request import FinishReason, Request, SamplingParams, natural_finish
from ostinato.engine.scheduler import BatchShaper, ScheduledBatch, Scheduler
from ostinato.errors import OutOfMemoryError


@dataclass(frozen=True)
class Limits:
    num_pages: int
    page_size: int
    max_num_reqs: int
    max_num_batched_tokens: int
    max_model_len: int


def model(request: Request) -> int:
    """The next token: a function of all tokens so far, as a model's would be."""
    return zlib.crc32(repr(request.all_token_ids).encode()) % 1000


class Simulation:
    def __init__(self, limits: Limits, shaper: BatchShaper | None = None) -> None:
        self.limits = limits
        self.allocator = PageAllocator(limits.num_pages, limits.page_size)
        self.scheduler = Scheduler(
            max_num_reqs=limits.max_num_reqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            allocator=self.allocator,
            shaper=shaper,
        )
        self.requests: list[Request] = []
        self.kv: dict[int, tuple[str, int, int]] = {}
        self.num_preempted = 0

    def add(self, prompt_len: int, max_tokens: int) -> None:
        number = len(self.requests)
        prompt = [number, *range(prompt_len - 1)]
        request = Request(
            request_id=f"r{number}", prompt_token_ids=prompt, params=SamplingParams(max_tokens=max_tokens)
        )
        self.requests.append(request)
        self.scheduler.add(request)
        self.check_books()

    def abort(self, number: int) -> None:
        if self.requests:
            request = self.requests[number % len(self.requests)]
            was_finished = request.is_finished
            assert self.scheduler.abort(request.request_id) is (None if was_finished else request)
            assert request.is_finished and not request.pages
            self.check_books()

    def step(self, *, abort: int | None = None, is_lost: bool = False) -> None:
        outputs_before = {r.request_id: list(r.output_token_ids) for r in self.requests}
        running_before = self.scheduler.running
        batch = self.scheduler.schedule()
        failed = self.scheduler.take_failed()
        self.check_batch(batch, running_before)
        for request in (*batch.preempted, *failed):
            assert request.output_token_ids == outputs_before[request.request_id]
            assert not request.pages
        for request in failed:
            if request.finish_reason is FinishReason.ERROR:
                assert isinstance(request.error, OutOfMemoryError)
                assert pages_for(request.num_tokens, self.limits.page_size) > self.limits.num_pages - 1
            else:
                assert request.finish_reason is FinishReason.LENGTH
        if self.scheduler.running or self.scheduler.waiting:
            assert batch.items or failed, "work is left and nothing moved"
        self.check_books()
        if is_lost:  # the step raised: nothing was computed, and the next schedule() must repeat it
            return
        self.compute(batch)
        sampled = {item.request.request_id: model(item.request) for item in batch.items if item.samples}
        if abort is not None:
            self.abort(abort)
        self.scheduler.complete(batch, sampled)
        for item in batch.items:
            limit = self.limits.max_model_len
            reason = natural_finish(item.request, eos_token_ids=(), max_model_len=limit) if item.samples else None
            if reason is not None:
                self.scheduler.finish(item.request, reason)
        self.check_books()

    def compute(self, batch: ScheduledBatch) -> None:
        size = self.limits.page_size
        written: set[int] = set()
        for item in batch.items:
            request = item.request
            slots = slots_for(request.pages, item.start, item.num_new_tokens, size)
            assert not written & set(slots)
            written |= set(slots)
            for slot, position in zip(slots, range(item.start, item.end), strict=True):
                self.kv[slot] = (request.request_id, position, request.all_token_ids[position])
        for item in batch.items:
            tokens = item.request.all_token_ids
            for position, slot in enumerate(slots_for(item.request.pages, 0, item.end, size)):
                assert self.kv[slot] == (item.request.request_id, position, tokens[position])

    def check_batch(self, batch: ScheduledBatch, running_before: tuple[Request, ...]) -> None:
        limits, items = self.limits, batch.items
        assert sum(item.num_new_tokens for item in items) == batch.num_tokens <= limits.max_num_batched_tokens
        assert len({item.request.request_id for item in items}) == len(items) == batch.num_reqs
        assert len(self.scheduler.running) <= limits.max_num_reqs
        for item in items:
            request = item.request
            assert item.num_new_tokens >= 1 and not request.is_finished and request in self.scheduler.running
            assert item.start == request.num_computed_tokens
            assert item.samples == (item.end == request.num_tokens)
            assert item.is_decode == request.is_decode
            assert len(request.pages) * limits.page_size >= item.end
            assert request not in batch.preempted
        kinds = [item.is_decode for item in items]
        assert kinds == sorted(kinds, reverse=True), "decodes come first"
        for is_decode in (True, False):
            numbers = [self.requests.index(item.request) for item in items if item.is_decode is is_decode]
            assert numbers == sorted(numbers), "first come, first served"
        assert batch.uniform_query_len == (1 if items and all(kinds) else None)
        # A decode is left out only for lack of a page: the budget always covers those that run.
        scheduled = {item.request for item in items}
        for request in running_before:
            if request.is_decode and not request.is_finished and request not in scheduled | set(batch.preempted):
                assert self.allocator.num_free_pages == 0
        for request in batch.preempted:
            assert request.num_computed_tokens == 0 and request in self.scheduler.waiting
        self.num_preempted += len(batch.preempted)
        assert sum(r.num_preemptions for r in self.requests) == self.num_preempted

    def check_books(self) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        self.allocator.check_integrity([request.pages for request in running])
        assert all(not r.pages for r in self.requests if r not in running)
        order = [self.requests.index(request) for request in (*running, *waiting)]
        assert order == sorted(order), "an older request waits behind a younger one"
        assert {id(r) for r in (*running, *waiting)} == {id(r) for r in self.requests if not r.is_finished}

    def drain(self) -> None:
        bound = 50 + 4 * sum(r.num_tokens + r.params.max_tokens for r in self.requests) * (1 + len(self.requests))
        for _ in range(bound):
            if not self.scheduler.has_work():
                break
            self.step()
        assert not self.scheduler.has_work(), "some request never ends"
        assert self.allocator.num_free_pages == self.allocator.num_usable_pages

    def check_outputs(self) -> None:
        """Each request got the tokens it would have had alone, as many as were due."""
        for request in self.requests:
            alone = Request(request_id="alone", prompt_token_ids=request.prompt_token_ids)
            for token in request.output_token_ids:
                assert token == model(alone)
                alone.output_token_ids.append(token)
            if request.finish_reason is FinishReason.LENGTH:
                room = self.limits.max_model_len - request.num_prompt_tokens
                assert len(request.output_token_ids) == min(request.params.max_tokens, room)
            else:
                assert request.finish_reason in (FinishReason.ABORT, FinishReason.ERROR)


limits_strategy = st.builds(
    Limits,
    num_pages=st.integers(2, 14),
    page_size=st.integers(1, 4),
    max_num_reqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 12),
    max_model_len=st.just(24),
)
actions_strategy = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 23), st.integers(1, 12)),
        st.tuples(st.just("add"), st.integers(1, 4), st.integers(1, 12)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step_with_abort"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("lost_step"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


shaper_strategy = st.none() | st.builds(
    BatchShaper, decode_sizes=st.sets(st.integers(1, 6)), token_sizes=st.sets(st.integers(1, 12))
)


@settings(max_examples=400, deadline=None)
@given(limits=limits_strategy, shaper=shaper_strategy, actions=actions_strategy)
def test_random_traffic(limits: Limits, shaper: BatchShaper | None, actions: list[tuple[str, int, int]]) -> None:
    simulation = Simulation(limits, shaper)
    for action, first, second in actions:
        if action == "add":
            simulation.add(first, second)
        elif action == "abort":
            simulation.abort(first)
        elif action == "step_with_abort":
            simulation.step(abort=first)
        else:
            simulation.step(is_lost=action == "lost_step")
    simulation.drain()
    simulation.check_outputs()


@settings(max_examples=100, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 8), st.integers(4, 12)), min_size=3, max_size=8),
    num_pages=st.integers(11, 14),
    max_num_batched_tokens=st.integers(4, 64),
)
def test_preempted_requests_lose_nothing(
    shapes: list[tuple[int, int]], num_pages: int, max_num_batched_tokens: int
) -> None:
    """Each request fits alone but not all together; none may end early."""
    simulation = Simulation(Limits(num_pages, 2, 8, max_num_batched_tokens, 24))
    for prompt_len, max_tokens in shapes:
        simulation.add(prompt_len, max_tokens)
    simulation.drain()
    simulation.check_outputs()
    assert all(r.finish_reason is FinishReason.LENGTH for r in simulation.requests)
    assert [len(r.output_token_ids) for r in simulation.requests] == [max_tokens for _, max_tokens in shapes]


def test_the_property_tests_do_reach_preemption() -> None:
    simulation = Simulation(Limits(11, 2, 8, 64, 24))
    for _ in range(4):
        simulation.add(3, 12)
    simulation.drain()
    simulation.check_outputs()
    assert simulation.num_preempted > 0
    assert simulation.requests[0].num_preemptions == 0, "the oldest is never preempted"
