"""The Markdown table and the plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato.bench import plots
from ostinato.bench.plots import draw
from ostinato.bench.report import markdown_table, report
from ostinato.bench.scenario import SCENARIOS

ROWS: dict[str, list[dict[str, Any]]] = {
    "decode": [{"mode": "none", "batch": 1, "tpot_ms": 2.5, "floor_ms": 1.0}, {"mode": "vllm", "batch": 8}],
    "prefill": [{"mode": "none", "tokens": 16, "ttft_ms": 2.5}],
    "surface": [{"variant": "fx", "tokens": 8, "requests": 1, "step_ms": 1.0}],
    "segments": [{"callable": "model", "segments": 3, "off_us": 10.0}],
    "checks": [{"callable": "m", "guards": "off", "watched": 3, "both_us": 1.0}],
    "dispatch": [{"kind": "decode", "sizes": 4, "worst_percent": 0.5}],
    "executables": [{"executables": "own", "kind": "decode", "nodes": 30, "other_host_us": 9.0, "sizes": [8, 4]}],
    "startup": [{"mode": "none", "total_s": 2.0}
                | {f"{s}_s": 0.1 for s in ("interpreter", "imports", "weights", "warm_up", "capture", "first_token")}],
    "background": [{"mode": "auto", "rate": 9.0, "capture": "eager", "part": "window", "seconds": 0.5,
                    "hit_percent": 9.0}, {"mode": "auto", "rate": 9.0, "capture": "eager", "part": "all"}],
    "serve": [{"mode": "none", "rate": 8.0, "ttft_ms_p99": 5.0, "load": "poisson 8/s"}],
}  # fmt: skip


def document(bench: str) -> dict[str, Any]:
    top = {"bench": bench, "model": "m", "hardware": "h", "date": "2026-11-29", "failed": {}, "skipped": {}}
    return {**top, "rows": ROWS[bench]}


def test_a_table_has_the_columns_that_some_row_has() -> None:
    table = markdown_table([{"a": 1.23456, "b": None}, {"a": [1.0, 2.0], "c": "x|y"}], ("a", "b", "c", "d"))
    assert table.splitlines() == [
        "| a     | b | c   |",
        "|-------|---|-----|",
        "| 1.235 | - | -   |",
        "| 1 - 2 | - | x/y |",
    ]


def test_a_picture_of_decisions_shows_what_the_ways_cost(tmp_path: Path) -> None:
    curves = [
        {"query_len": None, "kv_tier": None, "way": "eager", "ms": {"8": 2.0, "16": 2.5}},
        *({"query_len": 4, "kv_tier": tier, "way": "full decode graph", "ms": {"4": 1.0}} for tier in (256, 4096)),
    ]
    full = document("dispatch") | {"costs": {"auto": {"decided": curves, "judged": curves, "measurements": [curves]}}}
    decode, mixed = plots._panels(full)
    assert [decode[0], mixed[0]] == ["decode, 4 tokens a request", "mixed steps"]
    assert [row["way"] for row in decode[1]] == [
        f"full decode graph, contexts up to {tier}" for tier in ("256", "4,096")
    ]
    assert mixed[1][1] == {"kind": "mixed steps", "way": "eager", "tokens": 16, "step_ms": 2.5}
    pytest.importorskip("matplotlib")
    draw(full, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_every_scenario_has_a_table_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for bench in SCENARIOS:
        assert "| " in report(document(bench))
        draw(document(bench), tmp_path / f"{bench}.png")
        assert (tmp_path / f"{bench}.png").read_bytes().startswith(b"\x89PNG")


def test_windows_are_for_the_plot() -> None:
    assert "window" not in report(document("background")) and "| all " in report(document("background"))


def test_what_failed_or_stopped_paying_is_told() -> None:
    crossovers = [{"variant": "fx", "requests": 1, "pays_up_to": 8, "stops_paying_at": None}]
    text = report(document("surface") | {"failed": {"inductor": "no compiler"}, "crossovers": crossovers, "rows": []})
    assert "no rows" in text and "failed: inductor: no compiler" in text and "pays_up_to" in text


def test_a_surface_has_a_panel_for_each_number_of_requests() -> None:
    rows = [{"requests": requests, "tokens": 8, "variant": "full", "step_ms": 1.0} for requests in (8, 1, 8)]
    panels = plots._panels(document("surface") | {"rows": rows})
    assert [(title, len(rows)) for title, rows in panels] == [("1 requests", 1), ("8 requests", 2)]
