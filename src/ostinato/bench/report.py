"""A benchmark's rows as a Markdown table: the columns that people compare. The file has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["markdown_table", "report"]

_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "decode": (
        "mode", "batch", "tpot_ms", "tpot_ms_spread", "device_ms", "busy_ms", "host_us", "idle_percent", "kernels",
        "floor_ms", "floor_percent", "runtime_mode", "stream_tpot_ms", "stream_host_us", "speedup_over_eager",
    ),
    "prefill": (
        "mode", "tokens", "ttft_ms", "ttft_ms_spread", "device_ms", "idle_percent", "kernels", "floor_ms",
        "floor_percent", "runtime_mode",
    ),
    "surface": (
        "variant", "kind", "tokens", "requests", "step_ms", "step_ms_spread", "replay_ms", "eager_ms", "runtime_mode",
        "segments", "nodes", "graphs", "capture_seconds", "pool_bytes",
    ),
    "segments": (
        "callable", "tokens", "segments", "breaks", "on_us", "sampled_us", "off_us", "bare_us", "call_us",
        "off_us_per_segment", "bare_us_per_segment",
    ),
    "checks": ("callable", "guards", "watched", "decide_us", "guards_us", "both_us", "both_us_spread"),
    "dispatch": (
        "mode", "kind", "ladder", "sizes", "weighed", "one_way", "worst_percent", "worst_at", "mean_percent",
        "over_percent", "typical_worst_percent", "typical_over_percent", "order_worst_percent", "order_mean_percent",
    ),
    "executables": (
        "executables", "kind", "graphs", "segments", "num_executables", "nodes", "executable_bytes", "sizes",
        "switches", "same_host_us", "other_host_us", "switch_host_us", "same_ms", "other_ms", "switch_ms",
    ),
    "startup": (
        "mode", "caches", "total_s", "interpreter_s", "imports_s", "weights_s", "warm_up_s", "capture_s",
        "first_token_s", "num_graphs",
    ),
    "background": (
        "mode", "rate", "capture", "part", "start_s", "load_s", "settled_s", "steps", "hit_percent", "captured",
        "pending", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99",
    ),
    "serve": (
        "mode", "load", "num_requests", "num_failed", "requests_per_s", "output_tokens_per_s", "ttft_ms_p50",
        "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99", "goodput_percent", "goodput_per_s",
    ),
}  # fmt: skip


def report(document: Mapping[str, Any]) -> str:
    """The table of ``document`` (see `Evidence.to_dict`), and what failed, was skipped or stopped paying."""
    bench = document["bench"]
    parts = [f"{bench} of {document['model']} on {document['hardware']}, {document['date']}"]
    rows = [row for row in document["rows"] if row.get("part") != "window"]  # those are for the plot
    parts.append(markdown_table(rows, _COLUMNS[bench]) if rows else "no rows")
    if document.get("crossovers"):
        parts.append("Where a graph stops paying, in tokens of a step:")
        parts.append(markdown_table(document["crossovers"], tuple(document["crossovers"][0])))
    parts += [f"failed: {what}: {why}" for what, why in document["failed"].items()]
    parts += [f"skipped: {what}: {why}" for what, why in document["skipped"].items()]
    return "\n\n".join(parts)


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A GitHub table of those ``columns`` that some row has."""
    shown = [column for column in columns if any(column in row for row in rows)]
    cells = [[_cell(row.get(column)) for column in shown] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(shown, *cells, strict=True)]
    lines = [_line(shown, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    return "\n".join([*lines, *(_line(row, widths) for row in cells)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    if isinstance(value, list | tuple):
        return " - ".join(_cell(item) for item in value)
    return str(value).replace("|", "/")
