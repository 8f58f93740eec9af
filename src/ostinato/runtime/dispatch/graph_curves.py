"""What a graph of each bucket size costs, by kind of step: measured costs in the form in which sizes are planned. Pure.

Called by ``ostinato plan``.
"""

from __future__ import annotations

from ostinato.errors import ConfigError
from ostinato.runtime.dispatch.costs import EAGER, CostTable
from ostinato.runtime.planning import CostCurve

__all__ = ["graph_curves"]


def graph_curves(table: CostTable) -> dict[str, CostCurve]:
    """By "decode" (one token a request) and "mixed", the time of a step by bucket size; only of kinds with graphs.

    At each measured size the cheapest kind of graph counts, of those that were measured up to it or beyond. Where
    graphs have KV tiers, those of the longest contexts do: sizes alone do not say how long contexts are.

    Raises:
        ConfigError: no graph was measured.
    """
    points: dict[str, dict[str, dict[int, float]]] = {"decode": {}, "mixed": {}}
    longest: dict[str, int] = {}
    for sample in sorted(table.samples, key=lambda s: s.kind.kv_tier or 0):
        if sample.way == EAGER or sample.kind.uniform_query_len not in (None, 1):
            continue
        kind, tier = "mixed" if sample.kind.uniform_query_len is None else "decode", sample.kind.kv_tier or 0
        if longest.setdefault(kind, tier) < tier:
            longest[kind] = tier
            points[kind].clear()
        points[kind].setdefault(sample.way, {})[sample.size] = sample.ms
    found = {kind: CostCurve(_cheapest(ways)) for kind, ways in points.items() if ways}
    if not found:
        raise ConfigError("no graph was measured", fix="measure with graphs: ostinato explain --measure --costs FILE")
    return found


def _cheapest(ways: dict[str, dict[int, float]]) -> dict[int, float]:
    curves = [(max(measured), CostCurve(measured, keeps_dips=True)) for measured in ways.values()]
    sizes = {size for measured in ways.values() for size in measured}
    return {size: min(curve(size) for largest, curve in curves if size <= largest) for size in sizes}
