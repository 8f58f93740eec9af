"""How long a run takes, the device's work included."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["timed", "wait_for"]

T = TypeVar("T")


def timed(
    run: Callable[[], T], device: torch.device, *, clock: Callable[[], float] = time.perf_counter
) -> tuple[T, float]:
    """The result of ``run`` and its seconds by ``clock``, from an idle ``device`` to an idle one."""
    wait_for(device)
    began = clock()
    result = run()
    wait_for(device)
    return result, clock() - began


def wait_for(device: torch.device) -> None:
    """Wait until ``device`` has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
