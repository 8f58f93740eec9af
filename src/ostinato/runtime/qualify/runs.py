"""One run among several that must be alike, timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ostinato.runtime.runners import seeded, timed

__all__ = ["fastest"]

_NUM_TIMED: Final = {"cuda": 5}  # elsewhere 1: a simulated replay costs what the step costs


def fastest(run: Callable[[], Any], device: torch.device, *, restore: Callable[[], None]) -> tuple[Any, float]:
    """The result of the last of several seeded runs, and the seconds of the fastest.

    Args:
        restore: puts the state back between two runs.
    """
    seconds = []
    for number in range(_NUM_TIMED.get(device.type, 1)):
        if number:
            restore()
        with seeded(device):
            result, took = timed(run, device)
        seconds.append(took)
    return result, min(seconds)
