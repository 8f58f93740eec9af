"""Medians, spreads and percentiles of measured values. Pure arithmetic, used by every scenario."""

from __future__ import annotations

import math
import statistics as stats
from collections.abc import Sequence

__all__ = ["percentile", "percentiles", "summary", "tpot_ms"]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` lie, interpolated between neighbours.

    Raises:
        ValueError: no values, or a share outside 0 to 1.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    # This form stays between the two neighbours whatever the rounding.
    return min(max(ordered[low] + (ordered[high] - ordered[low]) * (place - low), ordered[low]), ordered[high])


def percentiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """``{name_p50, name_p90, name_p99}``, None where there are no values."""
    return {f"{name}_p{p}": _rounded(percentile(values, p / 100)) if values else None for p in (50, 90, 99)}


def summary(name: str, values: Sequence[float]) -> dict[str, float | list[float]]:
    """``{name: median, name_spread: [lowest, highest]}``.

    Raises:
        ValueError: no values.
    """
    return {name: _rounded(stats.median(values)), f"{name}_spread": [_rounded(min(values)), _rounded(max(values))]}


def tpot_ms(seconds_short: float, seconds_long: float, *, num_short: int, num_long: int) -> float:
    """Time per output token: what the tokens past the first ``num_short`` take each.

    The difference of two runs leaves out the prompt and the start of the decode.
    """
    return (seconds_long - seconds_short) / (num_long - num_short) * 1e3


def _rounded(value: float) -> float:
    return round(value, 4)
