"""Where a graph stops paying: the first size from which eager is as fast at every larger one. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["crossover", "largest_paying"]


def crossover(graph_ms: Mapping[int, float], eager_ms: Mapping[int, float], *, margin: float = 0.02) -> int | None:
    """The smallest size from which on, at every size measured in both, the graph gains less than ``margin``.

    Args:
        graph_ms, eager_ms: size in tokens -> milliseconds of a step.
        margin: share of eager's time that counts as no gain; repeats scatter by about that much.

    Returns:
        The size, or None if the graph still pays at the largest size, or no size was measured in both.
    """
    found = None
    for size in sorted(set(graph_ms) & set(eager_ms), reverse=True):
        if graph_ms[size] < eager_ms[size] * (1 - margin):
            break
        found = size
    return found


def largest_paying(graph_ms: Mapping[int, float], eager_ms: Mapping[int, float], *, margin: float = 0.02) -> int | None:
    """The largest size at which the graph gains at least ``margin``; None if at none."""
    sizes = sorted(set(graph_ms) & set(eager_ms), reverse=True)
    return next((size for size in sizes if graph_ms[size] < eager_ms[size] * (1 - margin)), None)
