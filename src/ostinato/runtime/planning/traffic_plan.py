"""The whole plan of a histogram: buckets of both kinds of step, their price, and other engines' ladders at that price.

Plain values in and out, ready for JSON. Pure: no torch, no files. Called by ``ostinato plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ostinato.errors import ConfigError
from ostinato.runtime.planning.cost_curve import CostCurve
from ostinato.runtime.planning.histogram import TrafficHistogram
from ostinato.runtime.planning.optimise import SizeChoices, SizePlan, judge_sizes
from ostinato.runtime.planning.presets import PRESETS, preset_ladder
from ostinato.runtime.planning.pricing import GraphPrice, affordable_graphs, shared_out

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
        memory_budget_mib: for the graphs of both kinds together; the steps of both together cost least.
        capture_seconds: to capture the graphs of both kinds.
        price: of a graph.
        costs: kind -> time of a step by bucket size; tokens where there is none.

    Returns:
        ``{"decode": {"sizes", "pad_percent", "miss_percent", ...}, "mixed": {...}, "peers": {name: {...}}}``; a kind
        without steps is None. With a `CostCurve`, "estimated" are the sizes that it was not measured at, and
        "measured_range" is its first and last; else they are empty and None.

    Raises:
        ConfigError: a budget that allows nothing, or that is to be shared by kinds whose costs have different units.
    """
    price, costs = price or GraphPrice(), costs or {}
    kinds: dict[str, Mapping[int, int]] = {
        kind: counts for kind in ("decode", "mixed") if (counts := getattr(histogram, kind))
    }
    allowed = affordable_graphs(
        price,
        max_graphs=max_graphs,
        memory_budget_mib=memory_budget_mib,
        capture_seconds=capture_seconds,
        num_kinds=len(kinds),
    )
    choices = {
        kind: SizeChoices(counts, max_graphs=max_graphs, cost=costs.get(kind, float)) for kind, counts in kinds.items()
    }
    is_short = allowed < sum(len(choice.costs) for choice in choices.values())
    if is_short and len(kinds.keys() & costs.keys()) == 1 < len(kinds):
        raise ConfigError(
            f"a budget is shared by the cost of steps, and only that of {next(iter(costs))} steps was measured",
            fix="measure both kinds or neither, or leave out the budgets",
        )
    shares = shared_out({kind: choice.costs for kind, choice in choices.items()}, allowed)
    document: dict[str, Any] = {"decode": None, "mixed": None}
    for kind, choice in choices.items():
        plan = choice.plan(shares[kind])
        document[kind] = {
            **_told(plan, price),
            **_estimates(plan, costs.get(kind)),
            "cost_unit": "measured time" if kind in costs else "tokens",
            "steps": sum(kinds[kind].values()),
            "percentiles": histogram.percentiles(kind),
        }
    document["peers"] = {name: _judged(name, kinds, costs, price) for name in PRESETS}
    num_graphs = sum(document[kind]["graphs"] for kind in kinds)
    document["total"] = {"graphs": num_graphs, **price.told(num_graphs)}
    document["price"] = asdict(price)
    return document


def _judged(
    name: str, kinds: Mapping[str, Mapping[int, int]], costs: Mapping[str, Cost], price: GraphPrice
) -> dict[str, Any]:
    """What the ladder of another engine costs on the same steps; "mixed" is missing where it captures none."""
    found = {}
    for kind, counts in kinds.items():
        sizes = preset_ladder(name, kind, largest=max(counts))
        if sizes:
            found[kind] = _told(judge_sizes(counts, sizes, cost=costs.get(kind, float)), price)
    return found


def _estimates(plan: SizePlan, cost: Cost | None) -> dict[str, Any]:
    if not isinstance(cost, CostCurve):  # tokens, or a function that knows any size
        return {"estimated": [], "measured_range": None}
    measured = cost.sizes
    return {
        "estimated": sorted(set(plan.sizes) - set(measured)),
        "measured_range": [measured[0], measured[-1]],
    }


def _told(plan: SizePlan, price: GraphPrice) -> dict[str, Any]:
    return {
        "sizes": list(plan.sizes),
        "graphs": len(plan.sizes),
        "pad_percent": round(plan.pad_percent, 3),
        "miss_percent": round(plan.miss_percent, 3),
        "cost": plan.cost,
        **price.told(len(plan.sizes)),
    }
