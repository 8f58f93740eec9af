"""`CostCurve`: the measured time of a step by bucket size, between measurements too. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from ostinato.errors import ConfigError
from ostinato.runtime.planning.histogram import MOST_COUNTED

__all__ = ["CostCurve"]


class CostCurve:
    """Linear between measured sizes, flat below the first, rising with the last slope above the last.

    Where a larger bucket was measured faster than a smaller one, the running maximum is taken: noise would else put
    buckets where a measurement happened to be lucky.

    Args:
        measured: size -> time of a step, any unit; at least one, sizes from 1 on, times above 0.
        keeps_dips: exact at every measured size instead, also where a larger one is faster. For choosing among
            buckets that are captured already, where a faster one is faster whatever the reason.

    Raises:
        ConfigError: a size or time that is none; it names the entry.
    """

    def __init__(self, measured: Mapping[Any, Any], *, keeps_dips: bool = False) -> None:
        points: dict[int, float] = {}
        for size, value in measured.items():
            try:
                at, cost = int(size), float(value)
            except (TypeError, ValueError, OverflowError):
                at, cost = 0, 0.0
            if not 1 <= at <= MOST_COUNTED or not 0 < cost < float("inf"):
                raise ConfigError(
                    f"the cost curve has {size!r}: {value!r}", fix="write sizes from 1 on and times above 0"
                )
            if at in points:
                raise ConfigError(f"the cost curve has {at} twice", fix="leave out one of the two")
            points[at] = cost
        if not points:
            raise ConfigError("the cost curve is empty", fix="measure at least one size")
        self._sizes = sorted(points)
        self._costs: list[float] = []
        for size in self._sizes:
            floor = self._costs[-1] if self._costs and not keeps_dips else 0.0
            self._costs.append(max(points[size], floor))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those that were measured, ascending; the time of any other is an estimate."""
        return tuple(self._sizes)

    def __call__(self, size: int) -> float:
        """Time of a step in a bucket of ``size``."""
        sizes, costs = self._sizes, self._costs
        at = bisect_left(sizes, size)
        if at == 0:
            return costs[0]
        if at < len(sizes) and sizes[at] == size:
            return costs[at]  # exact, which interpolation is up to rounding
        if at == len(sizes):
            if at == 1:
                return costs[0]
            at -= 1  # past the last: the last slope goes on
        low, high = sizes[at - 1], sizes[at]
        cost = costs[at - 1] + (costs[at] - costs[at - 1]) * (size - low) / (high - low)
        return cost if size <= high else max(cost, costs[-1])  # after a dip the last slope would lead below 0
