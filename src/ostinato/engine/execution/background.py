"""Capture in the background: the engine answers at once, and graphs come one by one between its steps.

Policy: which graph is next; whether there is time for it now, says `TimeShare`. Called between steps by `SpareTime`,
which has read the step in flight by then.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.time_share import TimeShare
from ostinato.runtime import CostTable, GraphKey, LiveBatch, TrafficHistogram, next_to_capture

__all__ = ["BackgroundCapture"]

logger = logging.getLogger("ostinato")

_FIRST_GUESS_SECONDS: Final = 0.5  # of a capture, before one was timed: kernels are compiled in it


class BackgroundCapture:
    """Captures what is pending, one key at a time.

    Args:
        captures: of an executor that serves already.
        traffic: of an earlier start, if there was one: what is served now adds to it.
        share: of the time since serving began that captures may have taken while requests run.
        clock: seconds; the one of deadlines.
    """

    def __init__(
        self,
        captures: Captures,
        *,
        share: float,
        traffic: TrafficHistogram | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._captures = captures
        self._graphed = captures.executor.graphed
        self._traffic = {kind: Counter(getattr(traffic, kind, {})) for kind in ("decode", "mixed")}
        self._clock = clock
        self._time = TimeShare(share, first_guess_seconds=_FIRST_GUESS_SECONDS, clock=clock)
        self.num_captured = 0
        self.num_failed = 0
        self.stopped_by: str | None = None
        """Why no more is captured beside requests, if it is so."""

    @property
    def num_pending(self) -> int:
        """Graphs that are still to come."""
        return len(self._graphed.pending)

    def is_due(self, *, is_idle: bool, earliest_deadline: float) -> bool:
        """Whether to capture a graph now.

        Args:
            is_idle: no request is queued or runs.
            earliest_deadline: of all requests, on the same clock; infinity if none has one.
        """
        has_time = self._time.allows(is_idle=is_idle, earliest_deadline=earliest_deadline)
        return has_time and self.stopped_by is None and self.num_pending > 0

    def capture_next(self, *, is_idle: bool) -> GraphKey | None:
        """Capture the graph that the traffic so far gains most from; None if it cannot be, or none is pending."""
        graphed = self._graphed
        pending = graphed.pending
        if not pending:
            return None
        counters, costs = graphed.counters, graphed.costs
        key = next_to_capture(
            pending,
            graphed.plans,
            decode=self._traffic["decode"] + Counter(counters.decode_sizes),
            mixed=self._traffic["mixed"] + Counter(counters.mixed_sizes),
            step_ms=None if costs is None else partial(_step_ms, costs),
        )
        began = self._clock()
        is_captured = self._captures.capture_late(key)
        self._time.spend(self._clock() - began, is_idle=is_idle)
        self.num_captured += is_captured
        self.num_failed += not is_captured
        return key if is_captured else None

    def stop(self, error: Exception) -> None:
        """A capture raised what is not its key's own fault: the next would, too. Steps go on without."""
        self.stopped_by = f"{type(error).__name__}: {error}"
        logger.error("no more graphs are captured in the background: %s", self.stopped_by)

    @property
    def expected_seconds(self) -> float:
        """What the next capture may take."""
        return self._time.expected_seconds

    def to_dict(self) -> dict[str, Any]:
        """``{"pending", "captured", "failed", "seconds", "stopped_by"}``."""
        return {
            "pending": self.num_pending,
            "captured": self.num_captured,
            "failed": self.num_failed,
            "seconds": round(self._time.seconds, 4),
            "stopped_by": self.stopped_by,
        }


def _step_ms(costs: CostTable, graph: GraphKey | None, like: GraphKey, size: int) -> float | None:
    """What a step of ``size`` takes by ``graph``, or eagerly, of the kind of ``like``; None where nobody knows."""
    query_len = like.uniform_query_len
    live = LiveBatch(
        num_tokens=size * (query_len or 1),
        num_reqs=size if query_len is not None else like.num_reqs and min(like.num_reqs, size),
        uniform_query_len=query_len,
        context_tokens=like.kv_tier,
    )
    return costs.cost_ms(live, graph)
