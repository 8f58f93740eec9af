"""The interpreter changes hands faster while threads that need it seldom run beside one that always does.

A thread that asks for the interpreter gets it after 5 ms, which Python means for threads that are equals. Whoever
hashes, copies or launches asks after every few hundred microseconds of its own, and would mostly wait. Used by what
runs beside imports and beside the making of an engine. Imports no torch.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["switching_faster"]

_SECONDS: Final = 0.0005


class _Switching:
    """The interval of the process, and who wants it short."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._usual_seconds = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._num_users:  # else what is usual would be taken from the first
                self._usual_seconds = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual_seconds, _SECONDS))
            self._num_users += 1

    def end(self) -> None:
        with self._lock:
            if not self._num_users:  # forgotten: the process was forked within the block
                return
            self._num_users -= 1
            if not self._num_users:
                sys.setswitchinterval(self._usual_seconds)

    def forget(self) -> None:
        """In a forked child: it has none of the threads that wanted it short, nor one that would give the lock back."""
        self._lock = threading.Lock()
        if self._num_users:
            sys.setswitchinterval(self._usual_seconds)
        self._num_users = 0


_switching: Final = _Switching()
os.register_at_fork(after_in_child=_switching.forget)


@contextmanager
def switching_faster() -> Iterator[None]:
    """Until the block ends; several may overlap, on any threads."""
    _switching.begin()
    try:
        yield
    finally:
        _switching.end()
