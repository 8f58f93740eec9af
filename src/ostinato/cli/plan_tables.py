"""What ``ostinato plan`` shows to people."""

from __future__ import annotations

from typing import Any

__all__ = ["show_plan"]


def show_plan(document: dict[str, Any]) -> None:
    """Tables of ``document``, which is that of `plan_traffic`: each kind of step, this plan and others' ladders."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for kind in ("decode", "mixed"):
        found = document[kind]
        unit = "requests" if kind == "decode" else "tokens"
        if found is None:
            console.print(f"no {kind} steps")
            continue
        percentiles = ", ".join(f"{name.upper()} {size}" for name, size in found["percentiles"].items())
        table = Table("ladder", title_justify="left")
        table.title = f"{found['steps']} {kind} steps ({unit}: {percentiles})"
        for column in ("graphs", "padding %", "eager %", "MiB", "capture s", *_kv_column(found)):
            table.add_column(column, justify="right")
        rows = {"this plan": found, **{name: peer[kind] for name, peer in document["peers"].items() if kind in peer}}
        for name, row in rows.items():
            table.add_row(name, *_cells(row))
        console.print(table)
        console.print(f"sizes: {', '.join(map(str, found['sizes']))}", highlight=False, soft_wrap=True)
        if found["cost_unit"] != "tokens":
            console.print(f"chosen by {found['cost_unit']}, not by tokens", highlight=False)
        if found["estimated"]:
            console.print(_estimate_line(found), highlight=False, soft_wrap=True)
    total = document["total"]
    lost = "" if total["kv_tokens_lost"] is None else f", {total['kv_tokens_lost']:,} KV tokens lost"
    price = f"{total['graphs']} graphs: about {total['memory_mib']:g} MiB and {total['capture_seconds']:g} s to capture"
    console.print(price + lost, highlight=False, soft_wrap=True)


def _estimate_line(found: dict[str, Any]) -> str:
    """Which sizes were chosen by times that nobody has measured."""
    low, high = found["measured_range"]
    sizes = ", ".join(map(str, found["estimated"]))
    above = ", ".join(str(size) for size in found["estimated"] if size > high)
    line = f"No cost was measured of {sizes}: theirs are estimated from sizes that were, {low} to {high}"
    return f"{line}; above them: {above}." if above else f"{line}."


def _kv_column(row: dict[str, Any]) -> tuple[str, ...]:
    return () if row["kv_tokens_lost"] is None else ("KV tokens lost",)


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [
        str(row["graphs"]),
        f"{row['pad_percent']:.2f}",
        f"{row['miss_percent']:.2f}",
        f"{row['memory_mib']:g}",
        f"{row['capture_seconds']:g}",
    ]
    return cells + [f"{row['kv_tokens_lost']:,}" for _ in _kv_column(row)]
