"""The line and the table that say what dispatch did."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from ostinato.cli.tables import dispatch_line, dispatch_table, graphs_line, share

NO_GRAPHS = {"count": 0, "segments": 0, "pool_bytes": 0, "capture_seconds": 0.0}


def row(runtime_mode: str, bucket: str, reason: str, hits: int, live: int, padded: int) -> dict[str, Any]:
    sizes = {"hits": hits, "live_tokens": live, "padded_tokens": padded}
    times = {"launch_seconds": hits * 0.0005, "step_seconds": 0.0}
    return {"runtime_mode": runtime_mode, "bucket": bucket, "reason": reason, **sizes, **times}


def dispatch(*rows: dict[str, Any]) -> dict[str, Any]:
    by_mode: dict[str, int] = {}
    by_reason: dict[str, int] = {}
    for entry in rows:
        by_mode[entry["runtime_mode"]] = by_mode.get(entry["runtime_mode"], 0) + entry["hits"]
        by_reason[entry["reason"]] = by_reason.get(entry["reason"], 0) + entry["hits"]
    return {
        "steps": sum(entry["hits"] for entry in rows),
        "by_runtime_mode": by_mode,
        "by_reason": by_reason,
        "live_tokens": sum(entry["live_tokens"] for entry in rows),
        "padded_tokens": sum(entry["padded_tokens"] for entry in rows),
        "buckets": list(rows),
    }


def drawn(counts: dict[str, Any], **options: bool) -> list[list[str]]:
    """The cells of the drawn table, row by row, its footer last."""
    out = io.StringIO()
    Console(file=out, width=120).print(dispatch_table(counts, **options))
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in out.getvalue().splitlines() if "│" in line
    ]


def test_the_line_counts_modes_reasons_padding_and_graphs() -> None:
    counts = dispatch(row("EAGER", "-", "OVER_LARGEST", 1, 40, 0), row("FULL", "4", "PADDED", 5, 15, 5))
    graphs = {"count": 1, "segments": 12, "pool_bytes": 3 << 19, "capture_seconds": 2.34}
    assert dispatch_line({"dispatch": counts, "graphs": graphs}) == (
        "6 steps: 5 FULL, 1 EAGER; why: 5 PADDED, 1 OVER_LARGEST; padding: 8 % of rows; "
        "1 graph of 12 segments in all, captured in 2.3 s, pool 1.5 MiB"
    )


def test_the_line_of_an_eager_engine() -> None:
    counts = dispatch(row("EAGER", "-", "DISABLED", 1, 7, 0))
    line = dispatch_line({"dispatch": counts, "graphs": NO_GRAPHS})
    assert line == "1 step: 1 EAGER; why: 1 DISABLED; padding: 0 % of rows; no graphs"


def test_the_line_when_nothing_ran() -> None:
    line = dispatch_line({"dispatch": dispatch(), "graphs": NO_GRAPHS})
    assert line == "0 steps: none; why: nothing ran; padding: 0 % of rows; no graphs"


def test_one_row_for_each_bucket_and_their_sum() -> None:
    counts = dispatch(row("FULL", "4/256", "PADDED", 5, 15, 5), row("FULL", "4/256", "EXACT", 2, 8, 0))
    assert drawn(counts) == [
        ["FULL", "4/256", "EXACT", "2", "8", "0", "0 %"],
        ["FULL", "4/256", "PADDED", "5", "15", "5", "25 %"],
        ["all", "", "", "7", "23", "5", "18 %"],
    ]


def test_times_are_means_of_a_step_and_absent_where_nobody_took_them() -> None:
    counts = dispatch(row("FULL", "4/256", "PADDED", 3, 9, 3), row("EAGER", "-", "OVER_LARGEST", 1, 40, 0))
    assert [cells[-3:] for cells in drawn(counts, has_times=True)] == [
        ["75 %", "0.500", "-"],
        ["25 %", "0.500", "-"],
        ["", "", ""],
    ]


def test_graphs_come_first_and_buckets_by_size() -> None:
    counts = dispatch(
        row("EAGER", "-", "OVER_LARGEST", 9, 900, 0),
        row("PIECEWISE", "16", "EXACT", 1, 16, 0),
        row("FULL", "16/256", "EXACT", 1, 16, 0),
        row("FULL", "2/2048", "EXACT", 1, 2, 0),
        row("FULL", "2/256", "EXACT", 1, 2, 0),
    )
    assert [cells[1] for cells in drawn(counts)] == ["2/256", "2/2048", "16/256", "16", "-", ""]


def test_no_graphs() -> None:
    assert graphs_line(NO_GRAPHS) == "no graphs"


def test_share_is_of_all_rows() -> None:
    assert (share(0, 0), share(0, 5), share(1, 3), share(5, 0)) == ("0 %", "0 %", "25 %", "100 %")
