"""Timing on the host, and the union of a device's busy spans."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.bench.clock import busy_interval_us, device_busy, host_times_us, step_times_ms

CPU = torch.device("cpu")
SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=12)


@given(SPANS)
def test_overlaps_count_once(spans: list[tuple[float, float]]) -> None:
    covered = {moment for start, end in spans for moment in range(int(start), int(end))}
    assert busy_interval_us(spans) == len(covered)


def test_each_repeat_is_timed_and_the_first_calls_are_not() -> None:
    calls = []

    def run() -> None:
        calls.append(None)
        time.sleep(0.05 if len(calls) <= 2 else 0.002)

    times = step_times_ms(run, CPU, 4)
    assert len(times) == 4 and len(calls) == 6
    assert 2 <= min(times) < 40
    assert len(host_times_us(run, CPU, 3)) == 3


def test_a_cpu_has_no_device_time() -> None:
    with pytest.raises(RuntimeError, match="CUDA"):
        device_busy(lambda: None, CPU)
