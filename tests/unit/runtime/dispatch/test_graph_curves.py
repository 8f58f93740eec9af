"""Measured costs as curves of bucket size."""

from __future__ import annotations

import pytest

from ostinato.errors import ConfigError
from ostinato.runtime import BatchKind, CostSample, CostTable, graph_curves

DECODE, MIXED = BatchKind(uniform_query_len=1), BatchKind()


def samples(kind: BatchKind, way: str, points: dict[int, float]) -> tuple[CostSample, ...]:
    return tuple(CostSample(kind=kind, way=way, size=size, ms=ms) for size, ms in points.items())


def test_the_cheapest_graph_counts_and_eager_does_not() -> None:
    table = CostTable(
        samples(MIXED, "full graph", {16: 1.0, 64: 1.25})
        + samples(MIXED, "piecewise graph", {16: 3.0, 128: 3.0, 256: 4.0})
        + samples(MIXED, "eager", {16: 0.1, 256: 0.1})
        + samples(DECODE, "full decode graph", {1: 0.5, 3: 1.5})
    )
    curves = graph_curves(table)
    assert set(curves) == {"decode", "mixed"}
    assert [curves["mixed"](size) for size in (16, 40, 64)] == [1.0, 1.125, 1.25]
    assert [curves["mixed"](size) for size in (128, 192, 256)] == [3.0, 3.5, 4.0], "no full graph was measured there"
    assert curves["decode"](2) == 1.0


def test_of_kv_tiers_the_longest_counts() -> None:
    short, long = (BatchKind(uniform_query_len=1, kv_tier=tier) for tier in (256, 2048))
    table = CostTable(
        samples(long, "full decode graph", {1: 2.0, 8: 3.0}) + samples(short, "full decode graph", {1: 1.0, 4: 1.0})
    )
    assert graph_curves(table)["decode"](4) == pytest.approx(2.0 + 3 / 7)


def test_decode_of_drafts_is_another_matter() -> None:
    table = CostTable(samples(BatchKind(uniform_query_len=4), "full decode graph", {4: 1.0}))
    with pytest.raises(ConfigError, match="no graph was measured"):
        graph_curves(table)
