"""A benchmark's rows as a picture: one line for each variant, or one bar of stages for each mode.

matplotlib is an extra and imported here alone; without it there is no picture and a message.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["draw", "draw_traffic", "has_matplotlib"]

# bench -> (x, y, what tells lines apart, is the y axis logarithmic)
_LINES: Final[dict[str, tuple[str, str, tuple[str, ...], bool]]] = {
    "decode": ("batch", "tpot_ms", ("mode",), False),
    "prefill": ("tokens", "ttft_ms", ("mode",), True),
    "surface": ("tokens", "step_ms", ("variant",), True),
    "segments": ("segments", "off_us", ("callable",), True),
    "checks": ("watched", "both_us", ("callable", "guards"), False),
    "dispatch": ("tokens", "step_ms", ("way",), True),
    "executables": ("nodes", "other_host_us", ("executables",), False),
    "growth": ("batch", "step_ms", ("context",), True),
    "serve": ("rate", "ttft_ms_p99", ("mode",), True),
    "background": ("seconds", "hit_percent", ("mode", "capture"), False),
}
_PANELS: Final = {"surface": "requests", "background": "rate", "dispatch": "kind"}
"""bench -> what tells panels apart, side by side on one scale."""
_UNITS: Final = {
    "requests": "requests",
    "rate": "requests a second",
    "context": "tokens of context",
    "queued": "queued",
}
_LABELS: Final = {
    "batch": "requests at once",
    "tpot_ms": "time per output token, ms",
    "ttft_ms": "time to first token, ms",
    "step_ms": "engine step, ms",
    "tokens": "tokens",
    "segments": "segments",
    "off_us": "host time of a replay, us",
    "rate": "requests a second",
    "seconds": "seconds from the engine's start",
    "hit_percent": "steps on graphs, %",
    "scheduler_us": "scheduling of a step, us",
    "watched": "tensors that are watched",
    "both_us": "decision and guards, us",
    "nodes": "nodes of the graphs",
    "other_host_us": "host time of a replay after another graph's, us",
    "ttft_ms_p99": "99th percentile of time to first token, ms",
}
_GROWTH_OF_THE_SCHEDULER: Final = ("batch", "scheduler_us", ("queued",), True)
_STAGES: Final = ("interpreter", "imports", "weights", "warm_up", "capture", "first_token")


def has_matplotlib() -> bool:
    """Whether `draw` can work here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write ``document`` (see `Evidence.to_dict`) as a PNG file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    panels = _panels(document)
    figure = Figure(figsize=(8 if len(panels) == 1 else 4.5 * len(panels), 5), layout="constrained")
    figure.suptitle(f"{document['bench']}, {document['model']}, {document['hardware']}, {document['date']}")
    for axes, (title, rows) in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
        shown = {**document, "rows": rows}
        if document["bench"] == "startup":
            _bars(axes, shown)
        else:
            _lines(axes, shown)
        axes.set_title(title)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150, format="png")


def _panels(document: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Title and rows of each picture that the figure holds."""
    name = _PANELS.get(document["bench"])
    if name is None:
        return [("", list(document["rows"]))]
    panels: dict[Any, list[Mapping[str, Any]]] = {}
    for row in _cost_rows(document) if document["bench"] == "dispatch" else document["rows"]:
        panels.setdefault(row[name], []).append(row)
    return [(f"{value} {_UNITS.get(name, '')}".strip(), rows) for value, rows in sorted(panels.items())] or [("", [])]


def _cost_rows(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What each way takes by size, as the judge of decisions measured it: why they are as they are."""
    costs = document.get("costs", {})
    return [
        {"kind": _kind(curve), "way": _way(curve, mode if len(costs) > 1 else ""), "tokens": int(tokens), "step_ms": ms}
        for mode, tables in costs.items()
        for curve in tables["judged"]
        for tokens, ms in curve["ms"].items()
    ]


def _kind(curve: Mapping[str, Any]) -> str:
    length = curve["query_len"]
    return "mixed steps" if length is None else f"decode, {length} {'token' if length == 1 else 'tokens'} a request"


def _way(curve: Mapping[str, Any], mode: str) -> str:
    tier = curve["kv_tier"]
    return ", ".join(filter(None, (mode, curve["way"], tier and f"contexts up to {tier:,}")))


def _lines(axes: Any, document: Mapping[str, Any]) -> None:
    is_scheduler = any("scheduler_us" in row for row in document["rows"])
    x, y, names, is_log = _GROWTH_OF_THE_SCHEDULER if is_scheduler else _LINES[document["bench"]]
    lines: dict[str, list[tuple[float, float]]] = {}
    floors: dict[float, float] = {}
    for row in document["rows"]:
        if row.get(x) is None or row.get(y) is None:
            continue
        label = ", ".join(f"{row[name]} {_UNITS.get(name, '')}".strip() for name in names if name in row)
        lines.setdefault(label, []).append((row[x], row[y]))
        if "floor_ms" in row:
            floors[row[x]] = row["floor_ms"]
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=label)
    if floors:
        axes.plot(*zip(*sorted(floors.items()), strict=True), linestyle=":", color="black", label="floor")
    if x != "seconds":
        axes.set_xscale("log", base=2)
    if is_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(_LABELS[x])
    axes.set_ylabel(_LABELS[y])


def _bars(axes: Any, document: Mapping[str, Any]) -> None:
    modes = [f"{row['mode']}, {row['capture']}" if "capture" in row else row["mode"] for row in document["rows"]]
    left = [0.0] * len(modes)
    for stage in _STAGES:
        widths = [row[f"{stage}_s"] for row in document["rows"]]
        axes.barh(modes, widths, left=left, label=stage)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds from process start")


def draw_traffic(traffic: Mapping[str, Mapping[int, int]], plan: Mapping[str, Any], path: Path) -> None:
    """Write how often steps of each size occur, the planned buckets, and beside them what all ladders waste
    and what their graphs cost, as a PNG file.

    Args:
        traffic: kind of step -> size -> steps.
        plan: of `ostinato.runtime.plan_traffic`.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    kinds = [kind for kind in ("decode", "mixed") if plan[kind] is not None]
    figure = Figure(figsize=(13, 3.5 * len(kinds)), layout="constrained")
    places = figure.subplots(len(kinds), 2, squeeze=False, width_ratios=(3, 2))
    for (axes, beside), kind in zip(places, kinds, strict=True):
        counts, sizes = traffic[kind], plan[kind]["sizes"]
        axes.bar(list(counts), list(counts.values()), width=1.0, label="steps")
        for size in sizes:
            axes.axvline(size, color="tab:orange", linewidth=0.8)
        axes.set_xlabel("requests" if kind == "decode" else "tokens")
        axes.set_ylabel("steps")
        axes.set_yscale("log")
        axes.set_title(f"{kind}: {len(sizes)} buckets, {plan[kind]['pad_percent']:.2f} % padding")
        _ladders(beside, {"this plan": plan[kind], **{n: p[kind] for n, p in plan["peers"].items() if kind in p}})
    figure.savefig(path, dpi=150, format="png")


def _ladders(axes: Any, ladders: Mapping[str, Mapping[str, Any]]) -> None:
    """Padding and misses of each ladder as bars, and in words what its graphs cost."""
    names = []
    for name, row in ladders.items():
        lost = "" if row["kv_tokens_lost"] is None else f", {row['kv_tokens_lost']:,} KV tokens"
        price = f"{row['graphs']} graphs, {row['memory_mib']:g} MiB, {row['capture_seconds']:g} s"
        names.append(f"{name}\n{price}{lost}")
    padding = [row["pad_percent"] for row in ladders.values()]
    axes.barh(names, padding, color="tab:blue", label="padding")
    axes.barh(
        names, [row["miss_percent"] for row in ladders.values()], left=padding, color="tab:red", label="eager steps"
    )
    axes.invert_yaxis()
    axes.set_xlabel("%")
    axes.tick_params(axis="y", labelsize="small")
    axes.legend(fontsize="small")
