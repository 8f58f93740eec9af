"""How long a run takes, the device's work included; and a device as it marks the time itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

__all__ = ["MarkedDevice", "timed", "wait_for"]

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


@dataclass(frozen=True)
class MarkedDevice:
    """`TimedDevice` of torch's. Only a CUDA device has marks: elsewhere the host does the work itself."""

    device: torch.device

    def wait(self) -> None:
        """See `TimedDevice.wait`."""
        wait_for(self.device)

    def marks(self, count: int) -> list[_EventMark]:
        """See `TimedDevice.marks`: on the stream that is current now."""
        stream = torch.cuda.current_stream(self.device)
        found = [_EventMark(torch.cuda.Event(enable_timing=True), stream) for _ in range(count)]
        for mark in found:
            mark.set()  # the driver's event is made when it is recorded first
        return found


@dataclass(frozen=True, eq=False)
class _EventMark:
    """`Mark` by an event."""

    event: torch.cuda.Event
    stream: torch.cuda.Stream

    def set(self) -> None:
        self.event.record(self.stream)

    def seconds_since(self, earlier: _EventMark) -> float:
        return float(earlier.event.elapsed_time(self.event)) * 1e-3
