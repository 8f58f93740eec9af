"""`CeilingWatch`: notices that the load sits above the largest bucket, where every step is eager (PITFALLS: the peak).

Costs nothing on steps that replay. Fed by `DispatchCounters`; what it finds goes to the bus, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ostinato.telemetry.events import Event, KeysPlanned, LoadAboveCeiling, StepDispatched

__all__ = ["OVER_LARGEST", "CeilingWatch"]

OVER_LARGEST: Final = "OVER_LARGEST"
"""`runtime.Reason.OVER_LARGEST`, which this layer may not import; a test compares the two."""
_NUM_RECENT: Final = 256
_NUM_OVER: Final = 128  # half: a burst passes, a sustained load does not


class CeilingWatch:
    """Tells `LoadAboveCeiling` when half of the recent steps were too large for every bucket.

    Args:
        tell: takes the event.
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._largest_tokens = 0
        self._largest_reqs: int | None = None
        self._recent: deque[tuple[int, StepDispatched]] = deque(maxlen=_NUM_OVER)  # steps above, with their numbers
        self._is_armed = True

    def keys_planned(self, event: KeysPlanned) -> None:
        """Take a new ceiling, and be ready to tell of it."""
        self._largest_tokens, self._largest_reqs = event.largest_tokens, event.largest_reqs
        self.rearm()

    def rearm(self) -> None:
        """Forget what was seen; the next sustained load above is told again."""
        self._recent.clear()
        self._is_armed = True

    def step_above(self, number: int, event: StepDispatched) -> None:
        """The ``number``-th step was ``event``, which ran eagerly for want of a large bucket."""
        if not self._is_armed:
            return
        recent = self._recent
        recent.append((number, event))
        if len(recent) == _NUM_OVER and number - recent[0][0] < _NUM_RECENT:
            self._is_armed = False
            self._tell(self._describe([step for _, step in recent]))
            recent.clear()

    def _describe(self, above: list[StepDispatched]) -> LoadAboveCeiling:
        sizes = [step.live_tokens for step in above]
        reqs = [step.live_reqs for step in above if step.live_reqs is not None]
        decodes = [step.live_reqs for step in above if step.is_decode and step.live_reqs is not None]
        if decodes:
            fix = f"capture decode graphs of up to {max(decodes)} requests (decode_sizes), or lower max_num_reqs"
        else:
            fix = f"capture a size of {max(sizes)} tokens (sizes, or token_sizes of an engine), or give smaller batches"
        return LoadAboveCeiling(
            num_over=len(above),
            num_recent=_NUM_RECENT,
            largest_tokens=self._largest_tokens,
            largest_reqs=self._largest_reqs,
            smallest_live_tokens=min(sizes),
            largest_live_tokens=max(sizes),
            largest_live_reqs=max(reqs, default=None),
            fix=fix,
        )
