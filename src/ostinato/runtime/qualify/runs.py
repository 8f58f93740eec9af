"""One run among several that must be alike: random numbers from one seed, the clock around the device's work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

__all__ = ["seeded", "timed", "wait_for"]

_SEED: Final = 20261129
_NUM_TIMED: Final = {"cuda": 5}  # elsewhere 1: a simulated replay costs what the step costs


@contextmanager
def seeded(device: torch.device) -> Iterator[None]:
    """Random generators of the host and of ``device`` start alike in each run, and are put back afterwards."""
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(_SEED)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(_SEED)
        yield


def timed(run: Callable[[], Any], device: torch.device, *, restore: Callable[[], None]) -> tuple[Any, float]:
    """The result of the last of several seeded runs, and the seconds of the fastest.

    Args:
        restore: puts the state back between two runs.
    """
    seconds = []
    for number in range(_NUM_TIMED.get(device.type, 1)):
        if number:
            restore()
        with seeded(device):
            wait_for(device)
            began = time.perf_counter()
            result = run()
            wait_for(device)
        seconds.append(time.perf_counter() - began)
    return result, min(seconds)


def wait_for(device: torch.device) -> None:
    """Wait until ``device`` has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
