"""The scheduler, whose decodes are columns of a table, against a plain one that walks over its requests.

Both see the same random traffic, overlapped or not, with aborts, failed and repeated steps; after every action they
agree on the batch, each request's tokens and counts, its pages, and the allocator's free list.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.paging import PageAllocator, pages_for
from ostinato.engine.request import FinishReason, Request, SamplingParams
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.errors import StepFailedError

Items = list[tuple[str, int, int, bool, bool]]


class PlainScheduler:
    """What `Scheduler` promises, request by request: no table, no shaping, no checks of bad calls."""

    def __init__(self, *, allocator: PageAllocator, max_num_reqs: int, max_num_batched_tokens: int, max_model_len: int):
        self.allocator, self.max_num_reqs, self.budget = allocator, max_num_reqs, max_num_batched_tokens
        self.last = min(max_model_len, allocator.num_usable_pages * allocator.page_size + 1)
        self.max_model_len = max_model_len
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def finish(self, request: Request, reason: FinishReason) -> None:
        if not request.is_finished:
            (self.running if request in self.running else self.waiting).remove(request)
            request.finish_reason = reason
            self.release(request)

    def release(self, request: Request) -> None:
        pages, request.pages = request.pages, []
        self.allocator.free(pages)

    def fits(self, request: Request) -> bool:
        return pages_for(request.num_tokens, self.allocator.page_size) <= self.allocator.num_usable_pages

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        if not self.fits(request):
            self.finish(request, FinishReason.ERROR)

    def schedule(self) -> tuple[list[tuple[Request, int, int, bool, bool]], list[Request]]:
        for request in list(self.running):
            if not request.num_pending_tokens and request.num_tokens >= self.last:
                is_long = request.num_tokens >= self.max_model_len
                if is_long or not self.fits(request):
                    self.finish(request, FinishReason.LENGTH if is_long else FinishReason.ERROR)
        budget = self.budget
        items: list[tuple[Request, int, int, bool, bool]] = []
        preempted: list[Request] = []
        for request in list(self.running):
            is_full = request.num_tokens >= min(request.max_num_tokens, self.last)
            if budget and request not in preempted and not (is_full and request.num_pending_tokens):
                budget -= self.give(request, budget, items, preempted)
        while budget and self.waiting and len(self.running) < self.max_num_reqs:
            needed = pages_for(self.waiting[0].num_tokens, self.allocator.page_size)
            if needed + len(self.running) > self.allocator.num_free_pages:
                break
            self.running.append(self.waiting.pop(0))
            budget -= self.give(self.running[-1], budget, items, preempted)
        return items, preempted

    def give(self, request: Request, budget: int, items: list[Any], preempted: list[Request]) -> int:
        start, size = request.num_computed_tokens, self.allocator.page_size
        while (room := (len(request.pages) + self.allocator.num_free_pages) * size) <= start:
            if self.running[-1] is request:
                return 0
            victim = self.running.pop()
            self.waiting.insert(0, victim)
            self.release(victim)
            victim.num_computed_tokens = 0
            victim.num_preemptions += 1
            preempted.append(victim)
        remaining = request.num_tokens - start
        num_new = min(remaining, budget, room - start)
        pages = self.allocator.allocate(max(0, pages_for(start + num_new, size) - len(request.pages)))
        assert pages is not None
        request.pages.extend(pages)
        items.append((request, start, num_new, num_new == remaining, request.is_decode))
        return num_new if num_new == remaining else budget

    def advance(self, items: list[tuple[Request, int, int, bool, bool]]) -> None:
        for request, start, num_new, samples, _ in items:
            if not request.is_finished:
                request.num_computed_tokens = start + num_new
                request.num_pending_tokens += samples

    def complete(self, items: list[tuple[Request, int, int, bool, bool]], sampled: dict[str, int]) -> None:
        for request, _, _, samples, _ in items:
            if samples and not request.is_finished:
                request.num_pending_tokens -= 1
                request.output_token_ids.append(sampled[request.request_id])


class Pair:
    """Both schedulers, told the same."""

    def __init__(self, *, num_pages: int, page_size: int, **limits: int) -> None:
        self.ours = Scheduler(allocator=PageAllocator(num_pages, page_size), **limits)  # type: ignore[arg-type]
        self.plain = PlainScheduler(allocator=PageAllocator(num_pages, page_size), **limits)  # type: ignore[arg-type]
        self.requests: list[tuple[Request, Request]] = []
        self.in_flight: list[tuple[ScheduledBatch, list[Any]]] = []
        self.num_steps = 0
        self.met: Counter[str] = Counter()

    def add(self, prompt_len: int, max_tokens: int) -> None:
        params, name = SamplingParams(max_tokens=max_tokens), f"r{len(self.requests)}"
        ours, plain = (
            Request(request_id=name, prompt_token_ids=[7] * prompt_len, params=params, is_streamed=bool(prompt_len % 2))
            for _ in range(2)
        )
        self.requests.append((ours, plain))
        self.ours.add(ours)
        self.plain.add(plain)

    def finish(self, number: int, reason: FinishReason = FinishReason.ABORT) -> None:
        ours, plain = self.requests[number]
        if not ours.is_finished:
            self.ours.finish(ours, reason)
            self.plain.finish(plain, reason)

    def schedule(self) -> tuple[ScheduledBatch, list[Any]]:
        batch = self.ours.schedule()
        self.ours.take_failed()
        items, preempted = self.plain.schedule()
        decodes = batch.decodes
        assert [r.request_id for r in batch.preempted] == [r.request_id for r in preempted]
        assert batch.num_reqs == len(items) and batch.num_tokens == sum(item[2] for item in items)
        assert [r.request_id for r in batch.requests] == [item[0].request_id for item in items]
        assert [r.request_id for r in batch.sampling] == [item[0].request_id for item in items if item[3]]
        assert (batch.query_lens, batch.ends) == ([i[2] for i in items], [i[1] + i[2] for i in items])
        if decodes is not None:
            at = range(len(decodes))
            size = self.ours._allocator.page_size
            assert decodes.capacities.tolist() == [len(items[i][0].pages) * size for i in at]
            places = [(items[i][0].pages, *divmod(items[i][1], size)) for i in at]
            assert decodes.slots.tolist() == [pages[number] * size + offset for pages, number, offset in places]
            left = decodes.roster.limits - decodes.starts
            for few in (1, 3):
                near = decodes.within(few)
                assert (left <= few).tolist() == ([False for _ in at] if near is None else near.tolist())
            assert decodes.num_pending.tolist() == [items[i][0].num_pending_tokens for i in at]
            known = [(*i[0].prompt_token_ids, *i[0].output_token_ids)[-1] for i in items[: len(decodes)]]
            assert decodes.token_ids.tolist() == known
        assert [(i[0].request_id, *i[1:]) for i in batch.items] == [(i[0].request_id, *i[1:]) for i in items]
        # One that came back from a preemption is no column before its first token, if its last chunk is one token.
        self.met["decodes without a column"] += sum(item[4] for item in items[batch.num_decodes :])
        self.met["decode rows"] += batch.num_decodes
        self.met["preemptions"] += len(preempted)
        self.met["mixed steps"] += bool(batch.num_decodes and batch.others)
        return batch, items

    def launch(self, *, is_lost: bool = False, fails: bool = False) -> int:
        """How many steps were launched."""
        batch, items = self.schedule()
        if is_lost or not items:
            return 0
        if fails:
            error = StepFailedError("planted")
            self.read_all()
            self.ours.drop(batch, error)
            for item in items:
                self.plain.finish(item[0], FinishReason.ERROR)
            return 0
        self.ours.advance(batch)
        self.plain.advance(items)
        self.in_flight.append((batch, items))
        return 1

    def read_all(self, leave: int = 0) -> None:
        while len(self.in_flight) > leave:
            batch, items = self.in_flight.pop(0)
            self.num_steps += 1
            serials = batch.decodes and batch.decodes.roster.serials
            if serials is not None and not self.ours._decodes.is_here(batch.decodes.roster).all():  # type: ignore[union-attr]
                self.met["rows gone while in flight"] += 1
            sampled = {item[0].request_id: self.num_steps * 100 + n for n, item in enumerate(items)}
            self.ours.complete(batch, sampled)
            self.plain.complete(items, sampled)
            for ours, plain in self.requests:  # by the plain one: ours must not be brought up to date by the test
                if not plain.is_finished and len(plain.output_token_ids) >= plain.params.max_tokens:
                    self.ours.finish(ours, FinishReason.LENGTH)
                    self.plain.finish(plain, FinishReason.LENGTH)

    def check(self, *, looks: bool) -> None:
        """``looks``: read each request, which brings it up to date."""
        for line in ("running", "waiting"):
            ours, plain = getattr(self.ours, line), getattr(self.plain, line)
            assert [r.request_id for r in ours] == [r.request_id for r in plain]
            assert [r.pages for r in ours] == [r.pages for r in plain]
        assert self.ours._allocator._free == self.plain.allocator._free
        running = self.ours.running
        assert tuple(self.ours._decodes.roster.requests) == running[: len(self.ours._decodes)], "decodes come first"
        for ours, plain in self.requests:
            assert ours.finish_reason == plain.finish_reason
            self.met["read while behind"] += looks and ours.books is not None
            if looks or ours.is_finished:
                assert ours.output_token_ids == plain.output_token_ids
                assert ours.num_computed_tokens == plain.num_computed_tokens
                assert (ours.num_pending_tokens, ours.is_decode) == (plain.num_pending_tokens, plain.is_decode)


TRAFFIC = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 20), st.integers(1, 40)),
        st.tuples(st.just("add"), st.integers(1, 3), st.integers(1, 40)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 80), st.just(0)),
        st.tuples(st.sampled_from(["abort", "look", "lost", "fail", "settle"]), st.integers(0, 20), st.just(0)),
    ),
    max_size=24,
)


def play(pair: Pair, actions: list[tuple[str, int, int]], *, overlap: bool) -> Counter[str]:
    for action, first, second in actions:
        if action == "add":
            pair.add(min(first, pair.plain.max_model_len - 1), second)
        elif action == "step":
            for _ in range(first):
                pair.read_all(leave=pair.launch() * overlap)
                pair.check(looks=False)
        elif action == "abort" and pair.requests:
            pair.finish(first % len(pair.requests))
        elif action in ("lost", "fail"):
            pair.launch(is_lost=action == "lost", fails=action == "fail")
        elif action == "settle":
            pair.read_all()
        pair.check(looks=action == "look")
    pair.read_all()
    pair.check(looks=True)
    return pair.met


@settings(max_examples=300, deadline=None)
@given(
    num_pages=st.integers(2, 40),
    page_size=st.integers(1, 4),
    max_num_reqs=st.integers(1, 6),
    budget=st.integers(1, 24),
    max_model_len=st.sampled_from([24, 100]),
    actions=TRAFFIC,
    overlap=st.booleans(),
)
def test_random_traffic(
    num_pages: int,
    page_size: int,
    max_num_reqs: int,
    budget: int,
    max_model_len: int,
    actions: list[tuple[str, int, int]],
    overlap: bool,
) -> None:
    pair = Pair(
        num_pages=num_pages,
        page_size=page_size,
        max_num_reqs=max_num_reqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
    )
    play(pair, actions, overlap=overlap)


def test_such_traffic_meets_what_it_is_for() -> None:
    pair = Pair(num_pages=21, page_size=2, max_num_reqs=4, max_num_batched_tokens=12, max_model_len=100)
    grow = [("add", 3, 30), ("add", 2, 12), ("step", 3, 0), ("add", 5, 40), ("look", 0, 0)]
    actions = [*grow, ("step", 20, 0), ("abort", 1, 0), ("lost", 0, 0), ("add", 2, 40), ("step", 80, 0)]
    met = play(pair, actions * 4, overlap=True)
    assert met["decode rows"] > 400 and met["preemptions"] > 3 and met["mixed steps"] > 5
    assert met["rows gone while in flight"] > 3 and met["read while behind"] > 3


def test_long_answers_are_gathered_that_nobody_looks_at() -> None:
    pair = Pair(num_pages=400, page_size=4, max_num_reqs=3, max_num_batched_tokens=12, max_model_len=400)
    for number in range(3):
        pair.add(2 + number, 300)
        for _ in range(3):
            pair.read_all(leave=pair.launch())
    for _ in range(250):
        pair.read_all(leave=pair.launch())
        pair.check(looks=False)
    assert not any(ours.is_finished for ours, _ in pair.requests)
    pair.check(looks=True)
