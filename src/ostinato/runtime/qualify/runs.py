"""One run among several that must be alike, timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ostinato.runtime.qualify.subject import Subject
from ostinato.runtime.runners import timed

__all__ = ["fastest"]

_NUM_TIMED: Final = {"cuda": 5}  # elsewhere 1: a simulated replay costs what the step costs


def fastest(run: Callable[[], Any], subject: Subject, *, restore: Callable[[], None]) -> tuple[Any, float]:
    """The result of the last of several seeded runs, and the seconds of the fastest.

    Args:
        restore: puts the state back between two runs.
    """
    seconds = []
    device = subject.wrapped.device
    for number in range(_NUM_TIMED.get(device.type, 1)):
        if number:
            restore()
        with subject.seeded():
            result, took = timed(run, device)
        seconds.append(took)
    return result, min(seconds)
