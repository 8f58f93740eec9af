"""`TimeShare`: whether there is time between two steps for work that no request waits for.

While requests run it may take a stated share of the time, and none of it more than half of what is left to the
earliest deadline; while nothing runs, all of it. Kept by background capture and by the turns of a shadow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["TimeShare"]

_SAFETY: Final = 2.0  # times what a piece of work took on average, for one that takes longer


class TimeShare:
    """Time that one kind of work takes, and may take.

    Args:
        share: of the time since now that the work may have taken while requests run, from 0 to 1.
        first_guess_seconds: what a piece of it takes, before one was timed.
        clock: seconds; the one of deadlines.
    """

    def __init__(self, share: float, *, first_guess_seconds: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._first_guess_seconds = first_guess_seconds
        self._clock = clock
        self._began = clock()
        self._idle_since: float | None = None
        self._idle_seconds = 0.0
        self._spent_seconds = 0.0  # beside running requests
        self._num_pieces = 0
        self.seconds = 0.0
        """In all pieces of work."""

    def allows(self, *, is_idle: bool, earliest_deadline: float) -> bool:
        """Whether to do a piece of work now.

        Args:
            is_idle: no request is queued or runs.
            earliest_deadline: of all requests, on the same clock; infinity if none has one.
        """
        now = self._clock()
        self._count_idle(now, is_idle=is_idle)
        if is_idle:
            return True
        expected = self.expected_seconds
        if expected > (earliest_deadline - now) / 2:  # how much its request still needs, nobody knows
            return False
        busy = now - self._began - self._idle_seconds
        return self._spent_seconds + expected <= self._share * busy

    def spend(self, seconds: float, *, is_idle: bool) -> None:
        """A piece of work took so long."""
        self._num_pieces += 1
        self.seconds += seconds
        if not is_idle:
            self._spent_seconds += seconds

    @property
    def expected_seconds(self) -> float:
        """What the next piece may take."""
        return _SAFETY * self.seconds / self._num_pieces if self._num_pieces else self._first_guess_seconds

    def _count_idle(self, now: float, *, is_idle: bool) -> None:
        if is_idle and self._idle_since is None:
            self._idle_since = now
        elif not is_idle and self._idle_since is not None:
            self._idle_seconds += now - self._idle_since
            self._idle_since = None
