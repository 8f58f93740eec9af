"""The capture phase: the only time in which a capture may begin.

A capture in the middle of serving moves workspaces and stalls requests (TensorRT-LLM gates it likewise), so
`CaptureGate.check` refuses it. While the phase is open the garbage collector is off and the heap frozen:
a finaliser that frees a kernel module or launches work inside a capture would break it (PITFALLS: GC in a
capture). A heap that the application had frozen itself stays as it is.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Final

from ostinato.errors import CaptureNotAllowedError, NestedCaptureError
from ostinato.runtime.breaks import is_recording
from ostinato.runtime.user_frames import user_frame

__all__ = ["CaptureGate"]

_MOST_IMMORTAL: Final = 2000
"""Objects that may count as frozen without anybody having asked for it: Python 3.12 counts its immortal ones after a
collection, some hundreds. Python alone has over 4,000 others, so whoever freezes, however early, freezes more."""
_YOUNG: Final = 1
_ALL: Final = 2
_BRIEF_PHASES_UNTIL_ALL: Final = 10  # as many collections of the young as Python lets pass


class _Collector:
    """The process's garbage collector, off as long as any phase is open: several devices have a gate each."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finaliser that the collection runs may open a phase itself
        self._depth = 0
        self._was_enabled = False
        self._has_frozen = False
        self._saw_frozen = False  # by the application, at the last look
        self._num_brief = 0  # phases since all was collected

    @contextmanager
    def off(self, *, is_brief: bool) -> Iterator[None]:
        """Collect, then switch off and freeze; undone when the last phase ends."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._was_enabled = gc.isenabled()
                gc.collect(self._generation(is_brief))
                gc.disable()
                self._has_frozen = not self._is_frozen()
                if self._has_frozen:
                    gc.freeze()
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    if self._has_frozen:
                        gc.unfreeze()
                    if self._was_enabled:
                        gc.enable()

    def _generation(self, is_brief: bool) -> int:
        """The oldest to collect. A phase makes all that is alive old, and a freeze sets back by what Python counts when
        it is to collect that: so nobody would while brief phases follow each other, but for every tenth."""
        self._num_brief = (self._num_brief + 1) % _BRIEF_PHASES_UNTIL_ALL if is_brief else 0
        return _YOUNG if self._num_brief else _ALL

    def _is_frozen(self) -> bool:
        """Whether the application has frozen the heap. Counting what is frozen takes as long as there is of it, so once
        it was frozen, look among the few that are not: while this object is not there, it still is.
        """
        if not self._saw_frozen or any(map(partial(is_, self), gc.get_objects())):
            self._saw_frozen = gc.get_freeze_count() > _MOST_IMMORTAL
        return self._saw_frozen


_collector = _Collector()


class CaptureGate:
    """Opened by the owner of a life cycle, checked by the backend at every begin."""

    def __init__(self) -> None:
        self._open_depth = 0
        self._owner: int | None = None
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, *, is_brief: bool = False) -> Iterator[None]:
        """Open the gate for this thread, with the garbage collector off.

        Args:
            is_brief: steps wait for the end. To look through a heap that holds torch takes 0.1 s: only young garbage is
                collected before, but in every tenth such phase.

        Raises:
            NestedCaptureError: a segment is being recorded on this thread.
            CaptureNotAllowedError: another thread has it open.
        """
        if is_recording():
            raise NestedCaptureError(
                "a capture phase would begin inside of a segment",
                fix="capture before, or in a @graph_break function; a Graphed that another calls needs no graphs",
                at=user_frame(),
            )
        me = threading.get_ident()
        with self._lock:
            if self._owner not in (None, me):
                raise CaptureNotAllowedError(
                    "another thread has the capture phase open", fix="capture from one thread at a time"
                )
            self._owner = me
            self._open_depth += 1
        try:
            with _collector.off(is_brief=is_brief):
                yield
        finally:
            with self._lock:
                self._open_depth -= 1
                if self._open_depth == 0:
                    self._owner = None

    def check(self) -> None:
        """Raise `CaptureNotAllowedError` unless this thread has the phase open."""
        if self._owner != threading.get_ident():
            raise CaptureNotAllowedError(
                "capture was tried outside the capture phase",
                fix="capture all keys with capture() before serving; an uncaptured key runs eagerly",
            )
