"""Which requests must have ended by when. One comparison a step while none is due. Called by the loop."""

from __future__ import annotations

import math

__all__ = ["Deadlines"]


class Deadlines:
    """Request ids and their deadlines, in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._by_id: dict[str, float] = {}
        self._earliest = math.inf
        """No deadline lies before it; it may be that of a request that has ended since."""

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def earliest(self) -> float:
        """The earliest deadline, or one before it that is nobody's any more; infinity if there is none."""
        return self._earliest

    def set(self, request_id: str, deadline: float) -> None:
        """Remember a request."""
        self._by_id[request_id] = deadline
        self._earliest = min(self._earliest, deadline)

    def forget(self, request_id: str) -> None:
        """Its request has ended. Unknown ids are ignored."""
        self._by_id.pop(request_id, None)

    def take_due(self, now: float) -> list[str]:
        """Ids whose deadline has come; they are forgotten."""
        if now < self._earliest:
            return []
        due = [request_id for request_id, deadline in self._by_id.items() if deadline <= now]
        for request_id in due:
            del self._by_id[request_id]
        self._earliest = min(self._by_id.values(), default=math.inf)
        return due
