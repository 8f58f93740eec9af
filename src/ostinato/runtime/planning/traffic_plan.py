"""The whole plan of a histogram: buckets of both kinds of step, their price, and other engines' ladders beside them.

Plain values in and out, ready for JSON. Pure: no torch, no files. Called by ``ostinato plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ostinato.runtime.planning.histogram import TrafficHistogram
from ostinato.runtime.planning.optimise import SizePlan, judge_sizes, optimise_sizes
from ostinato.runtime.planning.presets import PRESETS, preset_ladder
from ostinato.runtime.planning.pricing import GraphPrice, affordable_graphs

__all__ = ["plan_traffic"]

Cost = Callable[[int], float]


def plan_traffic(
    histogram: TrafficHistogram,
    *,
    max_graphs: int = 16,
    memory_budget_mib: float | None = None,
    capture_seconds: float | None = None,
    price: GraphPrice | None = None,
    costs: Mapping[str, Cost] | None = None,
) -> dict[str, Any]:
    """Sizes to capture for ``histogram``.

    Args:
        max_graphs: for each kind of step.
        memory_budget_mib: for the graphs of each kind.
        capture_seconds: to capture the graphs of each kind.
        price: of a graph.
        costs: kind -> time of a step by bucket size; tokens where there is none.

    Returns:
        ``{"decode": {"sizes", "pad_percent", "miss_percent", ...}, "mixed": {...}, "peers": {name: {...}}}``; a kind
        without steps is None.

    Raises:
        ConfigError: a budget that allows nothing.
    """
    price = price or GraphPrice()
    budgets = {"memory_budget_mib": memory_budget_mib, "capture_seconds": capture_seconds}
    allowed = affordable_graphs(price, max_graphs=max_graphs, **budgets)
    document: dict[str, Any] = {}
    for kind in ("decode", "mixed"):
        counts: Mapping[int, int] = getattr(histogram, kind)
        cost: Cost = (costs or {}).get(kind, float)
        if not counts:
            document[kind] = None
            continue
        plan = optimise_sizes(counts, max_graphs=allowed, cost=cost)
        num_graphs = len(plan.sizes)
        document[kind] = {
            **_told(plan),
            "cost_unit": "measured time" if kind in (costs or {}) else "tokens",
            "steps": sum(counts.values()),
            "percentiles": histogram.percentiles(kind),
            "memory_mib": round(num_graphs * price.mib, 1),
            "capture_seconds": round(num_graphs * price.capture_seconds, 2),
            "kv_tokens_lost": price.kv_tokens(num_graphs),
        }
    document["peers"] = {name: _judged(name, histogram, costs or {}) for name in PRESETS}
    return document


def _judged(name: str, histogram: TrafficHistogram, costs: Mapping[str, Cost]) -> dict[str, Any]:
    """What the ladder of another engine costs on the same steps; "mixed" is missing where it captures none."""
    found = {}
    for kind in ("decode", "mixed"):
        counts: Mapping[int, int] = getattr(histogram, kind)
        sizes = preset_ladder(name, kind, largest=max(counts)) if counts else ()
        if sizes:
            found[kind] = _told(judge_sizes(counts, sizes, cost=costs.get(kind, float)))
    return found


def _told(plan: SizePlan) -> dict[str, Any]:
    return {
        "sizes": list(plan.sizes),
        "graphs": len(plan.sizes),
        "pad_percent": round(plan.pad_percent, 3),
        "miss_percent": round(plan.miss_percent, 3),
        "cost": plan.cost,
    }
