"""Times of one call: on the device's clock where there is one, on the host's, and the device's busy time.

Each call is timed alone, after a synchronisation, so that a launch queue never fills up. The first calls are
thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["busy_interval_us", "device_busy", "host_times_us", "step_times_ms", "synchronize"]

_NUM_UNTIMED = 2


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_times_ms(run: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Time of each of ``repeats`` calls: between two events on CUDA, on the wall clock elsewhere."""
    times = []
    for index in range(repeats + _NUM_UNTIMED):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(device)
            start.record()
            run()
            end.record()
            torch.cuda.synchronize(device)
            elapsed = start.elapsed_time(end)
        else:
            began = time.perf_counter()
            run()
            elapsed = (time.perf_counter() - began) * 1e3
        if index >= _NUM_UNTIMED:
            times.append(elapsed)
    return times


def host_times_us(run: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Host time of each of ``repeats`` calls; on CUDA the launches alone, since the device is waited for afterwards.

    On the CPU the work is the host's own and is in it.
    """
    times = []
    for index in range(repeats + _NUM_UNTIMED):
        synchronize(device)
        began = time.perf_counter()
        run()
        elapsed = (time.perf_counter() - began) * 1e6
        if index >= _NUM_UNTIMED:
            times.append(elapsed)
    synchronize(device)
    return times


def device_busy(run: Callable[[], Any], device: torch.device) -> tuple[float, int]:
    """Milliseconds in which the device did anything during ``run``, and how many kernels, copies and fills it ran.

    By torch's profiler, which slows the host down but not a kernel. Overlapping kernels count once.

    Raises:
        RuntimeError: not a CUDA device, or the profiler reported nothing.
    """
    if device.type != "cuda":
        raise RuntimeError("only a CUDA device has a time of its own")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize(device)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    ]
    if not spans:
        raise RuntimeError("the profiler saw no kernel")
    return busy_interval_us(spans) / 1e3, len(spans)


def busy_interval_us(spans: list[tuple[float, float]]) -> float:
    """The length of the union of ``spans``."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
