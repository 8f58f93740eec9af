"""What one step would run as, and what each way costs: rows for JSON, tables for people.

Called by `explain`. Reads decisions and costs; decides nothing. Imports rich, so it is imported when a table is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

if TYPE_CHECKING:
    from ostinato.engine.execution import Decision, GraphKey

__all__ = ["costs_table", "decision_line", "decision_to_dict", "estimate_line", "step_table"]

_CHOSEN = "chosen"


def decision_to_dict(partition: str, decision: Decision, estimated: Sequence[GraphKey]) -> dict[str, Any]:
    """One decision with all its candidates, the chosen one first.

    Args:
        estimated: of these, the graphs whose cost goes by that of other sizes.
    """
    live = decision.live.num_tokens
    candidates = [
        {
            "candidate": "eager" if decision.key is None else str(decision.key),
            "bucket": None if decision.key is None else decision.key.num_tokens,
            "padding": decision.padded_tokens - live,
            "cost_ms": _rounded(decision.cost_ms),
            "why": _CHOSEN,
            "detail": "",
        }
    ]
    candidates += [
        {
            "candidate": other.candidate,
            "bucket": None if other.key is None else other.key.num_tokens,
            "padding": None if other.key is None else other.key.num_tokens - live,
            "cost_ms": _rounded(other.cost_ms),
            "why": other.reason.value,
            "detail": other.detail if other.cost_ms is None else "",
        }
        for other in decision.alternatives
    ]
    return {
        "partition": partition,
        "runtime_mode": decision.runtime_mode.value,
        "reason": decision.reason.value,
        "bucket": None if decision.key is None else decision.key.num_tokens,
        "padding": decision.padded_tokens - live,
        "cost_ms": _rounded(decision.cost_ms),
        "candidates": candidates,
        "estimated": [str(key) for key in estimated],
    }


def decision_line(found: Mapping[str, Any]) -> str:
    """The decision in one line."""
    bucket = "" if found["bucket"] is None else f", bucket {found['bucket']} ({found['padding']} padded)"
    cost = "cost not measured" if found["cost_ms"] is None else f"{found['cost_ms']:.3f} ms expected"
    return f"partition {found['partition']}: {found['runtime_mode']} because {found['reason']}{bucket}, {cost}"


def estimate_line(found: Mapping[str, Any]) -> str:
    """Which costs of a decision are no measured ones."""
    return (
        f"Measured with other sizes: no cost was measured of {', '.join(found['estimated'])}; what stands there is "
        "estimated from the sizes that were."
    )


def step_table(found: Mapping[str, Any]) -> Table:
    """A row for each candidate, the chosen one first."""
    table = Table("candidate", title=f"Candidates, partition {found['partition']}", title_justify="left")
    for name in ("bucket", "padding", "expected ms"):
        table.add_column(name, justify="right")
    table.add_column("why (not)")
    for row in found["candidates"]:
        why = row["why"] + (f": {row['detail']}" if row["detail"] else "")
        style = "bold" if row["why"] == _CHOSEN else None
        cost = "-" if row["cost_ms"] is None else f"{row['cost_ms']:.3f}"
        table.add_row(row["candidate"], _number(row["bucket"]), _number(row["padding"]), cost, why, style=style)
    return table


def costs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What every way costs at every measured size, in milliseconds, and the cheapest."""
    ways = list(dict.fromkeys(way for row in rows for way in row["costs"]))
    batches = Column("batches", no_wrap=True)
    table = Table(batches, title="Measured costs in ms", title_justify="left")
    for name in ("tokens", *ways):
        table.add_column(name, justify="right")
    table.add_column("cheapest")
    for row in rows:
        costs = [f"{row['costs'][way]:.3f}" if way in row["costs"] else "-" for way in ways]
        table.add_row(row["batches"], str(row["tokens"]), *costs, row["best"])
    return table


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
