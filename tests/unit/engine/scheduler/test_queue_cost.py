"""A decode step's scheduling does as much with 10,000 waiting requests as with 16: counted, not timed.

Counted are calls (Python's and C's), lines that run, and what is taken out of the waiting line one by one, also by C
code that no profiler sees (``in``, ``list``, ``sorted``).
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.scheduler import BatchShaper, ScheduledBatch, Scheduler

NUM_RUNNING = 16
NUM_STEPS = 20
"""Counted: enough for every request to fill a page."""


class CountedLine(deque[Request]):
    """A line that counts who is looked at."""

    num_seen = 0

    def __iter__(self) -> Iterator[Request]:
        for request in super().__iter__():
            self.num_seen += 1
            yield request

    def __getitem__(self, index: Any) -> Any:
        self.num_seen += 1
        return super().__getitem__(index)

    def __contains__(self, request: object) -> bool:
        self.num_seen += len(self)
        return super().__contains__(request)


def work_of_a_step(num_waiting: int, *, shaper: BatchShaper | None, is_full: bool = True) -> Counter[str]:
    """What `NUM_STEPS` decode steps do, as the loop drives them, by kind; there is no room for those that wait."""
    scheduler = Scheduler(
        max_num_reqs=NUM_RUNNING if is_full else NUM_RUNNING + 1,
        max_num_batched_tokens=512,
        max_model_len=1024,
        # Where a place is free, pages are missing for the long prompt at the head of the line.
        allocator=PageAllocator(4 * NUM_RUNNING, 16),
        shaper=shaper,
    )
    for index in range(NUM_RUNNING + num_waiting):
        is_waiting = index >= NUM_RUNNING
        prompt = [1] * (700 if is_waiting else 8)
        params = SamplingParams(max_tokens=40)
        scheduler.add(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
    sampled = np.full(NUM_RUNNING, 5, dtype=np.int64)
    unread: deque[ScheduledBatch] = deque()

    def step() -> None:
        batch = scheduler.schedule(now=0.0)
        scheduler.advance(batch)
        unread.append(batch)
        if len(unread) > 1:
            read = unread.popleft()
            scheduler.complete(read, sampled[: len(read.sampling)])

    for _ in range(4):
        step()
    line = scheduler._queues.waiting = CountedLine(scheduler._queues.waiting)
    found = counted(lambda: [step() for _ in range(NUM_STEPS)])
    assert (len(scheduler.running), len(line)) == (NUM_RUNNING, num_waiting), "nobody came or went"
    return found + Counter(seen_in_line=line.num_seen)


def counted(run: Callable[[], object]) -> Counter[str]:
    """Calls and lines of ``run``."""
    found: Counter[str] = Counter()

    def called(_frame: FrameType, event: str, _arg: object) -> None:
        found[event] += 1

    def traced(_frame: FrameType, event: str, _arg: object) -> Any:
        found["lines"] += event == "line"
        return traced

    before = sys.getprofile(), sys.gettrace()
    sys.settrace(traced)
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(before[0])
        sys.settrace(before[1])
    return found


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("is_shaped", [False, True])
def test_a_step_does_no_more_for_a_longer_queue(is_shaped: bool, is_full: bool) -> None:
    def shaper() -> BatchShaper | None:
        return BatchShaper(decode_sizes=[1, 8, 16, 32], token_sizes=[16, 64, 512]) if is_shaped else None

    short, long = (work_of_a_step(num, shaper=shaper(), is_full=is_full) for num in (16, 10_000))
    assert short["call"] > 5 * NUM_STEPS and short["c_call"] > 5 * NUM_STEPS and short["lines"] > 20 * NUM_STEPS
    assert long == short
