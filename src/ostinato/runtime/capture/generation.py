"""`Generation`: how often the memory of a backend's graphs may have been overwritten since a given moment.

Graphs of one pool share memory: what an early capture used in passing may become an output of a later one, which the
early one then overwrites at each of its replays. So an output counts as overwritten once any plan of its own backend
has been replayed, or any plan of a backend that had captured into the same pool before. Pure counting.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Generation"]


class Generation:
    """A counter for one backend's plans, and those that their memory may be shared with."""

    def __init__(self) -> None:
        self._count = 0
        self._earlier: list[Generation] = []

    @property
    def now(self) -> int:
        """Grows whenever outputs of this backend's plans may be overwritten; never shrinks."""
        return self._count + sum(earlier._count for earlier in self._earlier)

    def advance(self) -> None:
        """What lies in the plans' outputs is about to be overwritten, or given back."""
        self._count += 1

    def follow(self, others: Iterable[Generation]) -> None:
        """Captures that begin now may be given memory that plans of ``others`` use in passing."""
        self._earlier += [other for other in others if other is not self and other not in self._earlier]
