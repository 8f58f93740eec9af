"""How fast the host is while rows are measured: the time of a piece of Python that is always the same.

A host that is shared slows down by half and more for seconds at a time, and rows that wait for it are then of another
machine. Beside each row this tells them apart.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PACE_NOTE", "host_pace_us"]

PACE_NOTE: Final = (
    "host_pace_us: what a fixed piece of Python took before and after the row, the slower of the two: rows of one run "
    "that differ in it were measured on a host of another speed"
)
_TRIES: Final = 5


def host_pace_us() -> float:
    """Microseconds, the least of a few tries: some 100 on a fast host."""
    import torch

    from ostinato.bench.clock import host_times_us

    return round(min(host_times_us(_work, torch.device("cpu"), _TRIES)), 1)  # the device is not waited for


def _work() -> int:
    total, table = 0, {0: 1}
    for number in range(2000):
        table[number & 15] = total
        total += len(table)
    return total
