"""Continuous batching with chunked prefill and preemption by recompute.

Each step takes decodes first, then prompts in order of arrival, within a token budget, and owns a page
slot for every token it schedules. It leaves out sampling, stop rules and tensors. Driven by the loop:
``schedule``, launch the step, ``advance``; when its tokens are read, ``finish`` what failed, ``complete``,
``finish`` what is done; ``drop`` a step that failed. One step may be scheduled and launched before the tokens of the
step before are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ostinato.engine.paging import PageAllocator, pages_for
from ostinato.engine.request import FinishReason, Request
from ostinato.engine.scheduler.batch import ScheduledBatch, ScheduledRequest
from ostinato.engine.scheduler.decode_rows import DecodeRows, Roster
from ostinato.engine.scheduler.decode_table import DecodeTable
from ostinato.engine.scheduler.launched_steps import LaunchedSteps
from ostinato.engine.scheduler.queues import RequestQueues
from ostinato.engine.scheduler.shaping import BatchShaper
from ostinato.errors import (
    ConfigError,
    EngineError,
    OstinatoError,
    OutOfMemoryError,
    PageIntegrityError,
    RequestError,
)

__all__ = ["Scheduler"]


class Scheduler:
    """Decides who runs in each step.

    Args:
        max_num_reqs: requests that may run at once.
        max_num_batched_tokens: tokens in one step.
        max_model_len: tokens a request may hold; one that reaches it is ended with LENGTH.
        allocator: the pages; nobody else may allocate from it.
        shaper: makes steps fit the captured sizes; None takes them as they come.
    """

    def __init__(
        self,
        *,
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        allocator: PageAllocator,
        shaper: BatchShaper | None = None,
    ) -> None:
        if min(max_num_reqs, max_num_batched_tokens, max_model_len) < 1:
            raise ConfigError("scheduler limits must be >= 1")
        self._max_num_reqs = max_num_reqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._allocator = allocator
        self._shaper = shaper
        # A request of as many tokens can get no other: the model or the cache ends there.
        self._last_num_tokens = min(max_model_len, allocator.num_usable_pages * allocator.page_size + 1)
        self._queues = RequestQueues()
        self._decodes = DecodeTable(
            max_num_reqs=max_num_reqs, max_num_tokens=self._last_num_tokens, page_size=allocator.page_size
        )
        self._failed: list[Request] = []
        self._launched = LaunchedSteps(self._decodes)

    @property
    def max_model_len(self) -> int:
        """Tokens a request may hold."""
        return self._max_model_len

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Requests that hold no pages, oldest first."""
        return tuple(self._queues.waiting)

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that hold pages, oldest first."""
        return tuple(self._queues.running)

    def has_work(self) -> bool:
        """True while a request waits or runs, or an ended one was not yet taken by `take_failed`."""
        return bool(self._queues.waiting or self._queues.running or self._failed)

    def add(self, request: Request) -> None:
        """Take a new request. One that can never fit in the pages is ended at once (see `take_failed`).

        Raises:
            RequestError: no tokens, too long, already begun, or its id is in use.
        """
        if not 0 < request.num_tokens < self._max_model_len:
            expected = f"1 to {self._max_model_len - 1} tokens"
            raise RequestError(f"request {request.request_id!r} cannot run", expected=expected, got=request.num_tokens)
        if request.is_finished or request.pages or request.num_computed_tokens:
            raise RequestError(f"request {request.request_id!r} was begun before", fix="make a new Request")
        self._queues.append(request)
        if not self._can_ever_fit(request):
            self._fail(request)

    def abort(self, request_id: str) -> Request | None:
        """End a request with ABORT, also in the middle of a step; None when no such request is here."""
        return self.end(request_id, FinishReason.ABORT)

    def end(self, request_id: str, reason: FinishReason) -> Request | None:
        """End a request before its time, also in the middle of a step; None when no such request is here."""
        request = self._queues.get(request_id)
        if request is not None:
            self.finish(request, reason)
        return request

    def finish(self, request: Request, reason: FinishReason, error: OstinatoError | None = None) -> None:
        """End a request: free its pages and forget it. Does nothing when it has ended already.

        Raises:
            EngineError: the request is not in this scheduler.
        """
        if request.is_finished:
            return
        if not self._queues.remove(request):
            raise EngineError(f"request {request.request_id!r} is not in the scheduler")
        self._decodes.leave(request)
        request.finish_reason = reason
        request.error = error
        self._release_pages(request)

    def drop(self, batch: ScheduledBatch, error: OstinatoError) -> list[Request]:
        """Give up a step that failed, launched or not: its requests end with ERROR and ``error``; those that did."""
        ended = [request for request in batch.requests if not request.is_finished]
        for request in ended:
            self.finish(request, FinishReason.ERROR, error)
        self._launched.drop(batch)
        return ended

    def end_all(self, error: OstinatoError) -> list[Request]:
        """End every request with ERROR and ``error``, whatever the state of the books; those that it ended."""
        ended = [*self._queues.running, *self._queues.waiting]
        for request in ended:
            with suppress(PageIntegrityError):
                self.finish(request, FinishReason.ERROR, error)
        self._launched.drop_all()
        return ended

    def take_failed(self) -> list[Request]:
        """Requests that the scheduler itself ended since the last call, for the loop to deliver.

        ERROR with an `OutOfMemoryError` when the request needs more pages than there are; LENGTH when it
        reached max_model_len and the loop had not ended it.
        """
        failed, self._failed = self._failed, []
        return failed

    def schedule(self, *, now: float | None = None) -> ScheduledBatch:
        """Choose the next step. Calling it again before `advance` schedules the same tokens again.

        A request whose pending token is its last, by a limit that needs no look at the token, is left out.

        Args:
            now: seconds, on the clock of `Request.deadline`; needed where requests have one and steps are shaped.
        """
        self._end_hopeless()
        if self._shaper is not None:
            self._shaper.begin_step(now)
        queues, budget = self._queues, self._max_num_batched_tokens
        items: list[ScheduledRequest] = []
        preempted: list[Request] = []
        # In running order decodes come first: a prompt is admitted only behind requests that all sample in the
        # same step, so one that is not through yet is always the youngest. What it lacks, tokens or pages, then
        # nobody else has either, and nobody is admitted past it.
        others = queues.running[len(self._decodes) :]
        decodes = self._schedule_decodes(budget, preempted) if len(self._decodes) else None
        num_decodes = 0 if decodes is None else len(decodes)
        budget -= num_decodes
        for request in others:
            if not budget:
                break
            if request not in preempted and not self._waits_for_its_last(request):
                budget -= self._schedule_running(request, budget, items, preempted)
        while budget and self._can_admit() and not self._holds_back(num_decodes + len(items)):
            budget -= self._schedule_running(queues.admit(), budget, items, preempted)
        return ScheduledBatch(tuple(items), tuple(preempted), decodes)

    def advance(self, batch: ScheduledBatch) -> None:
        """Record that a step was launched; see `LaunchedSteps.advance`."""
        self._launched.advance(batch)

    def complete(self, batch: ScheduledBatch, sampled: Mapping[str, int] | NDArray[np.int64]) -> None:
        """Record a step's tokens, once they are read; see `LaunchedSteps.complete`."""
        self._launched.complete(batch, sampled)

    def _schedule_decodes(self, budget: int, preempted: list[Request]) -> DecodeRows | None:
        """Give the requests in decode their next token, and a page to those that lack one; None if nobody is due."""
        table, rows = self._decodes, self._decodes.rows
        if rows.are_full is not None:  # a pending token is its last: it waits until that is delivered
            rows = rows.take((~(rows.are_full & (rows.num_pending > 0))).nonzero()[0])
        if len(rows) > budget:
            rows = rows.take(np.arange(budget))
        lacking = (rows.starts >= rows.capacities).nonzero()[0]
        if len(lacking):
            roster = self._add_pages(rows.roster, lacking, preempted)
            rows = table.rows if roster is table.roster else table.rows_of(roster)
        return rows if len(rows) else None

    def _add_pages(self, roster: Roster, lacking: NDArray[np.int64], preempted: list[Request]) -> Roster:
        """Give those at the places ``lacking`` a page each; who of ``roster`` can then be scheduled.

        Where pages run out, the youngest requests make room for older ones.
        """
        pages = self._allocator.allocate(len(lacking))
        if pages is not None:
            self._decodes.add_pages(roster, lacking, pages)
            return roster
        is_left = np.ones(len(roster), dtype=np.bool_)
        for index in lacking.tolist():
            request = roster.requests[index]
            if request in preempted:
                break  # and so are those behind it
            if not self._make_room(request, preempted):
                is_left[index] = False  # the youngest of all
                break
            pages = self._allocator.allocate(1)
            assert pages is not None, "there is room"
            self._decodes.add_pages(roster, np.array([index]), pages)
        is_left &= self._decodes.is_here(roster)
        return roster if is_left.all() else roster.take(is_left.nonzero()[0])

    def _make_room(self, request: Request, preempted: list[Request]) -> bool:
        """Preempt the youngest until there is a slot for the request's next token; False if only it is left."""
        while self._num_reachable_slots(request) <= request.num_computed_tokens:
            # The youngest keeps its own pages: older ones will end, or take them back when they must.
            if self._queues.running[-1] is request:
                return False
            preempted.append(self._preempt_youngest())
        return True

    def _waits_for_its_last(self, request: Request) -> bool:
        """Whether its pending token is its last, or another would not fit; asked of those that came back with one."""
        limit = min(request.max_num_tokens, self._last_num_tokens)
        return request.num_pending_tokens > 0 and request.num_tokens >= limit

    def _schedule_running(
        self, request: Request, budget: int, items: list[ScheduledRequest], preempted: list[Request]
    ) -> int:
        """Give a running request its next chunk, with a slot for each token; what that takes of ``budget``."""
        start, remaining = request.num_computed_tokens, request.num_tokens - request.num_computed_tokens
        if not self._make_room(request, preempted):
            return 0
        num_new = min(remaining, budget, self._num_reachable_slots(request) - start)
        if num_new < remaining and self._shaper is not None and not self._queues.waiting:
            num_scheduled = self._max_num_batched_tokens - budget
            num_new = self._shaper.chunk(num_new, num_scheduled=num_scheduled, remaining=remaining, budget=budget)
        taken = num_new if num_new == remaining else budget  # nobody is admitted behind a prompt that is not through
        missing = pages_for(start + num_new, self._allocator.page_size) - len(request.pages)
        pages = self._allocator.allocate(max(0, missing))
        assert pages is not None, "reachable slots were counted from the free pages"
        request.pages.extend(pages)
        items.append(ScheduledRequest(request, start, num_new, num_new == remaining, request.is_decode))
        return taken

    def _num_reachable_slots(self, request: Request) -> int:
        return (len(request.pages) + self._allocator.num_free_pages) * self._allocator.page_size

    def _can_admit(self) -> bool:
        """Whether the oldest waiting request may start now.

        It needs pages for all its tokens, and one page of growth is left to each running request: admitting
        into the very last pages would only preempt the newcomer some steps later and compute it twice.
        """
        waiting, running = self._queues.waiting, self._queues.running
        if not waiting or len(running) >= self._max_num_reqs:
            return False
        needed = pages_for(waiting[0].num_tokens, self._allocator.page_size)
        return needed + len(running) <= self._allocator.num_free_pages

    def _holds_back(self, num_running: int) -> bool:
        """Whether the oldest waiting request waits for a step that its admission pads less. Never for an empty one."""
        if self._shaper is None or not num_running:
            return False
        waiting = self._queues.waiting
        return self._shaper.holds_back(waiting[0], num_running=num_running, num_waiting=len(waiting))

    def _preempt_youngest(self) -> Request:
        """Take back the youngest request's pages. Its outputs stay; its K/V is computed again later."""
        victim = self._queues.preempt_youngest()
        self._decodes.leave(victim)
        self._release_pages(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        return victim

    def _end_hopeless(self) -> None:
        """End running requests that have outgrown the model or all the pages. Waiting ones cannot have grown."""
        decoding: list[Request] = []
        if len(self._decodes) and (are_full := self._decodes.rows.are_full) is not None:
            rows = self._decodes.rows
            full = (are_full & (rows.num_pending == 0)).nonzero()[0].tolist()
            decoding = [rows.roster.requests[index] for index in full]
        for request in (*decoding, *self._queues.running[len(self._decodes) :]):
            if request.num_pending_tokens or request.num_tokens < self._last_num_tokens:
                continue  # a pending token is delivered first
            if request.num_tokens >= self._max_model_len:
                self.finish(request, FinishReason.LENGTH)
                self._failed.append(request)
            elif not self._can_ever_fit(request):
                self._fail(request)

    def _can_ever_fit(self, request: Request) -> bool:
        return pages_for(request.num_tokens, self._allocator.page_size) <= self._allocator.num_usable_pages

    def _fail(self, request: Request) -> None:
        capacity = self._allocator.num_usable_pages * self._allocator.page_size
        error = OutOfMemoryError(
            f"request {request.request_id!r} needs {request.num_tokens} KV tokens and the whole cache holds {capacity}",
            fix="raise kv_tokens, or send a shorter prompt or a smaller max_tokens",
            expected=f"at most {capacity} tokens",
            got=request.num_tokens,
        )
        self.finish(request, FinishReason.ERROR, error)
        self._failed.append(request)

    def _release_pages(self, request: Request) -> None:
        pages, request.pages = request.pages, []
        self._allocator.free(pages)
