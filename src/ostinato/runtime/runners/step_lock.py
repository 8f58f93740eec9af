"""`StepLock`: one step at a time, over all threads. Steps share static buffers, so they may not overlap."""

from __future__ import annotations

import threading

from ostinato.errors import RuntimeStateError

__all__ = ["StepLock"]


class StepLock:
    """A context manager. A step begun inside another on the same thread is an error, not a deadlock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise RuntimeStateError(
                "a Graphed was called from inside its own step",
                fix="do not call it from its own breaks or progress callbacks: they share its static buffers",
            )
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._owner = None
        self._lock.release()
