"""What dispatch did, for people: one line after `generate`, a table in `demo` and `stats`.

Reads `LLM.stats()` as plain values. Leaves JSON to the commands. No rich until a table is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["dispatch_line", "dispatch_table", "graphs_line", "share"]

_MODES = ("FULL", "PIECEWISE", "EAGER")


def dispatch_line(stats: Mapping[str, Any]) -> str:
    """Steps by runtime mode, the reasons, the padding and the graphs, in one line."""
    dispatch = stats["dispatch"]
    parts = [
        f"{_count(dispatch['steps'], 'step')}: {_list(dispatch['by_runtime_mode']) or 'none'}",
        f"why: {_list(dispatch['by_reason']) or 'nothing ran'}",
        f"padding: {share(dispatch['padded_tokens'], dispatch['live_tokens'])} of rows",
        graphs_line(stats["graphs"]),
    ]
    return "; ".join(parts)


def graphs_line(graphs: Mapping[str, Any]) -> str:
    """How many graphs there are and what they cost."""
    if not graphs["count"]:
        return "no graphs"
    return (
        f"{_count(graphs['count'], 'graph')} of {_count(graphs['segments'], 'segment')} in all, "
        f"captured in {graphs['capture_seconds']:.1f} s, pool {graphs['pool_bytes'] / 2**20:.1f} MiB"
    )


def dispatch_table(dispatch: Mapping[str, Any], *, has_times: bool = False) -> Table:
    """One row for each runtime mode, bucket and reason that steps had, and their sum.

    Args:
        has_times: add the share of each row, and what its steps took; some 20 columns wider.
    """
    from rich.table import Table

    caption = "bucket: tokens/longest context; padding: rows computed for nobody"
    caption += "; launch: host time; step: wall time" if has_times else ""
    table = Table(title="Dispatch", title_justify="left", caption=caption, caption_justify="left", show_footer=True)
    table.add_column("runtime mode", footer="all")
    table.add_column("bucket", justify="right")
    table.add_column("reason")
    table.add_column("hits", justify="right", footer=str(dispatch["steps"]))
    table.add_column("live tokens", justify="right", footer=str(dispatch["live_tokens"]))
    table.add_column("padding", justify="right", footer=str(dispatch["padded_tokens"]))
    table.add_column("wasted", justify="right", footer=share(dispatch["padded_tokens"], dispatch["live_tokens"]))
    if has_times:
        for name in ("of steps", "launch ms", "step ms"):
            table.add_column(name, justify="right")
    for row in sorted(dispatch["buckets"], key=_by_mode_and_size):
        cells = [
            row["runtime_mode"],
            row["bucket"],
            row["reason"],
            str(row["hits"]),
            str(row["live_tokens"]),
            str(row["padded_tokens"]),
            share(row["padded_tokens"], row["live_tokens"]),
        ]
        if has_times:
            cells.append(share(row["hits"], dispatch["steps"] - row["hits"]))
            cells += [_mean_ms(row[name], row["hits"]) for name in ("launch_seconds", "step_seconds")]
        table.add_row(*cells)
    return table


def share(part: int, rest: int) -> str:
    """A part of a whole, such as padding of all rows that were computed."""
    total = part + rest
    return f"{100 * part / total:.0f} %" if total else "0 %"


def _mean_ms(seconds: float, hits: int) -> str:
    return f"{1000 * seconds / hits:.3f}" if hits and seconds else "-"


def _by_mode_and_size(row: Mapping[str, Any]) -> tuple[int, list[int], str]:
    """Graphs first, small buckets first; a bucket is "tokens" or "tokens/context", or "-" where there is none."""
    mode = _MODES.index(row["runtime_mode"]) if row["runtime_mode"] in _MODES else len(_MODES)
    sizes = [int(size) for size in row["bucket"].split("/") if size.isdigit()]
    return mode, sizes, row["reason"]


def _list(counts: Mapping[str, int]) -> str:
    most_first = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in most_first)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
