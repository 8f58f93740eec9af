"""Percentiles, spreads and TPOT as pure functions."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.bench.statistics import percentile, percentiles, summary, tpot_ms

VALUES = st.lists(st.floats(min_value=0, max_value=1e6, allow_nan=False), min_size=1, max_size=40)


@given(VALUES, st.floats(min_value=0, max_value=1), st.floats(min_value=0, max_value=1))
def test_percentiles_lie_within_the_values_and_are_ordered(values: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert min(values) <= percentile(values, low) <= percentile(values, high) * (1 + 1e-12) <= max(values) * (1 + 1e-12)


@given(VALUES)
def test_the_middle_is_the_median_and_the_ends_are_the_extremes(values: list[float]) -> None:
    assert percentile(values, 0.5) == pytest.approx(statistics.median(values))
    assert (percentile(values, 0), percentile(values, 1)) == (min(values), max(values))


def test_percentiles_interpolate() -> None:
    assert percentile([10.0, 20.0, 30.0, 40.0, 50.0], 0.9) == pytest.approx(46.0)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)
    assert percentiles("x", []) == {"x_p50": None, "x_p90": None, "x_p99": None}


def test_summary_is_the_median_and_both_ends() -> None:
    assert summary("x", [3.0, 1.0, 7.0]) == {"x": 3.0, "x_spread": [1.0, 7.0]}


@given(st.floats(0.001, 10), st.floats(0.0001, 0.1))
def test_tpot_leaves_out_what_both_runs_share(prompt_s: float, token_s: float) -> None:
    found = tpot_ms(prompt_s + 8 * token_s, prompt_s + 136 * token_s, num_short=8, num_long=136)
    assert found == pytest.approx(token_s * 1e3, rel=1e-6)
