"""Suggested sizes: the best there are, by brute force; none where the sizes suit; the ceiling stays."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.keys import Mode
from ostinato.runtime.planning import (
    PlannedSizes,
    TrafficHistogram,
    judge_sizes,
    plan_keys,
    plan_traffic,
    suggest_change,
    suggest_sizes,
)

COUNTS = st.dictionaries(st.integers(1, 12), st.integers(1, 50), min_size=1, max_size=7)
SIZES = st.sets(st.integers(1, 14), min_size=1, max_size=4).map(sorted)
LIMITS = {"decode": 64, "mixed": 512}


def cheapest(counts, largest, num_sizes):
    """Of all sets of so many sizes at most that end at ``largest``."""
    below = range(1, largest)
    return min(
        judge_sizes(counts, [*chosen, largest]).cost
        for length in range(num_sizes)
        for chosen in itertools.combinations(below, length)
    )


@given(COUNTS, SIZES)
def test_as_good_as_brute_force(counts, sizes):
    change = suggest_change(sizes, counts)
    largest = max(sizes[-1], *counts)
    assert change.then.cost == cheapest(counts, largest, len(sizes))
    assert change.now == judge_sizes(counts, sizes)


@given(COUNTS, SIZES)
def test_as_many_graphs_as_before_and_the_peak_stays_covered(counts, sizes):
    change = suggest_change(sizes, counts)
    then = set(change.then.sizes)
    assert then == (set(sizes) | set(change.add)) - set(change.retire)
    assert len(then) == len(sizes) and len(change.add) == len(change.retire)
    assert max(then) == max(sizes[-1], *counts) and change.then.miss_percent == 0


def test_unseen_traffic_keeps_buckets_near_it():
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    change = suggest_change(sizes, {5: 1000, 11: 1000})
    assert change.add == (5, 11)
    kept = change.then.sizes
    assert max(high / low for low, high in itertools.pairwise(kept)) <= 4, f"a wide gap in {kept}"


def test_the_saving_is_told_in_rows():
    result = suggest_sizes(
        PlannedSizes(decode=(1, 8, 64)), {"decode": {9: 900, 30: 100}}, limits=LIMITS, min_steps=1000
    )
    assert result.has_changes and result.sizes is None
    assert result.decode_sizes is not None and {9, 30, 64} == set(result.decode_sizes)
    assert result.decode is not None
    assert (result.decode.add, result.decode.retire) == ((9, 30), (1, 8))
    computed = 900 * 9 + 100 * 30
    assert result.decode.saved_percent == pytest.approx(100 * (1 - computed / (1000 * 64)))
    assert result.decode.then.pad_percent == 0 and result.to_dict()["decode"]["add"] == (9, 30)
    assert result.reason == "decode: 82.7 % less computed"


def test_none_where_traffic_is_as_planned():
    live = {"decode": {1: 500, 7: 300, 20: 400}, "mixed": {16: 100, 200: 900, 384: 50}}
    plan = plan_traffic(TrafficHistogram(**live), max_graphs=3)
    planned = PlannedSizes(decode=tuple(plan["decode"]["sizes"]), mixed=tuple(plan["mixed"]["sizes"]))
    result = suggest_sizes(planned, live, limits=LIMITS)
    assert not result.has_changes and (result.sizes, result.decode_sizes) == (None, None)
    assert result.reason.count("the sizes suit the traffic") == 2


def test_few_steps_say_nothing():
    result = suggest_sizes(PlannedSizes(decode=(64,)), {"decode": {1: 999}}, limits=LIMITS)
    assert not result.has_changes and result.reason == "decode: 999 steps were seen, 1000 are needed"


def test_a_small_saving_is_not_worth_it():
    live = {"mixed": {96: 1000, 100: 1000}}
    planned = PlannedSizes(mixed=(99, 100))
    assert not suggest_sizes(planned, live, limits=LIMITS).has_changes
    result = suggest_sizes(planned, live, limits=LIMITS, min_saved_percent=1)
    assert result.sizes == (96, 100) and result.mixed.saved_percent == pytest.approx(100 * 3 / 199)


def test_steps_above_the_ceiling_get_a_bucket_but_for_those_above_the_limit():
    live = {"mixed": {100: 900, 300: 100, 600: 5000}}
    result = suggest_sizes(PlannedSizes(mixed=(64, 100)), live, limits=LIMITS, min_saved_percent=9.9)
    assert result.sizes == (100, 300), "512 is the most; 600 stay eager"
    assert result.mixed.now.miss_percent == 10 and "10.0 % fewer eager" in result.reason


def test_decodes_run_in_token_buckets_where_they_have_none_of_their_own():
    live = {"decode": {3: 2000}, "mixed": {3: 1, 40: 20}}
    result = suggest_sizes(PlannedSizes(mixed=(16, 64)), live, limits=LIMITS)
    assert result.sizes == (3, 64) and result.decode is None


def test_sizes_are_multiples():
    result = suggest_sizes(PlannedSizes(mixed=(8, 64)), {"mixed": {9: 1000, 13: 1000}}, limits=LIMITS, multiple=8)
    assert result.sizes == (16, 64)


def test_a_measured_cost_decides():
    live = {"decode": {2: 1000, 30: 1000}}
    planned = PlannedSizes(decode=(2, 40))
    by_tokens = suggest_sizes(planned, live, limits=LIMITS)
    assert not by_tokens.has_changes, "40 must stay, so there is nothing to win"
    planned = PlannedSizes(decode=(4, 20, 40))
    live = {"decode": {4: 500, 20: 100, 30: 400}}
    assert suggest_sizes(planned, live, limits=LIMITS).decode_sizes == (4, 30, 40)
    steep = {"decode": lambda size: 1.0 if size <= 20 else 10.0}
    assert not suggest_sizes(planned, live, limits=LIMITS, costs=steep).has_changes, "30 costs as much as 40"


def test_the_sizes_of_keys():
    config = GraphConfig(sizes=(8, 16), decode_sizes=(1, 4), max_num_reqs=4, kv_tiers=(64, 256))
    keys = plan_keys(config, Mode.FULL_AND_PIECEWISE, max_size=16, full_mixed_max_tokens=8)
    assert PlannedSizes.of(keys) == PlannedSizes(decode=(1, 4), mixed=(8, 16))
    assert suggest_sizes(PlannedSizes.of([]), {}, limits=LIMITS).reason == "no sizes are captured"


@pytest.mark.parametrize(
    "bad",
    [
        {"min_steps": 0},
        {"min_steps": "1"},
        {"min_saved_percent": -1},
        {"min_saved_percent": 100},
        {"min_saved_percent": None},
    ],
)
def test_thresholds_that_are_none(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        suggest_sizes(PlannedSizes(decode=(4,)), {}, limits=LIMITS, **bad)
