"""Histograms, cost curves, prices and other engines' ladders, and the plan that is made of them."""

from __future__ import annotations

import pytest

from ostinato.errors import ConfigError, UnknownNameError
from ostinato.runtime import CostCurve, GraphPrice, TrafficHistogram, plan_traffic
from ostinato.runtime.planning import affordable_graphs, preset_ladder, preset_within

DOCUMENT = {"decode": {"1": 50, "2": 30, "7": 15, "29": 5}, "mixed": {"173": 40, "512": 2}}


def test_a_histogram_comes_back_from_its_document():
    histogram = TrafficHistogram.from_dict(DOCUMENT)
    assert histogram.decode == {1: 50, 2: 30, 7: 15, 29: 5}
    assert histogram.to_dict() == DOCUMENT
    assert histogram.percentiles("decode") == {"p50": 1, "p90": 7, "p99": 29}
    assert TrafficHistogram(decode={3: 1}).percentiles("mixed") == {}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "a histogram is an object"),
        ({"decode": {"1": 1}, "prefill": {}}, "a histogram is an object"),
        ({"decode": 3}, "'decode' must map sizes to counts"),
        ({"decode": {"few": 3}}, "has the size 'few'"),
        ({"decode": {"0": 3}}, "has 0: 3"),
        ({"mixed": {"4": -1}}, "has 4: -1"),
        ({"mixed": {"4": 1.5}}, "has 4: 1.5"),
        ({"mixed": {"4": 0}}, "has no steps"),
        ({"decode": {"4": 10**400}}, "has 4: 1000"),
        ({"decode": {str(10**400): 1}}, "has 1000"),
        ({"decode": {float("inf"): 1}}, "has the size inf"),
        ({"decode": {"4": 1, "04": 2}}, "has 4 twice"),
        ({}, "has no steps"),
    ],
)
def test_bad_histograms(document, message):
    with pytest.raises(ConfigError, match=message):
        TrafficHistogram.from_dict(document)


def test_a_plan_beside_the_ladders_of_others():
    found = plan_traffic(
        TrafficHistogram.from_dict(DOCUMENT), max_graphs=3, price=GraphPrice(mib=4, kv_bytes_per_token=1024)
    )
    assert found["decode"]["sizes"][-1] == 29 and len(found["decode"]["sizes"]) == 3
    assert found["decode"]["miss_percent"] == 0 and found["decode"]["steps"] == 100
    assert found["decode"]["memory_mib"] == 12 and found["decode"]["kv_tokens_lost"] == 12 * 1024
    assert found["mixed"]["sizes"] == [173, 512] and found["mixed"]["pad_percent"] == 0
    assert set(found["peers"]) == {"vllm", "sglang", "tensorrt-llm"}
    assert "mixed" not in found["peers"]["tensorrt-llm"]
    as_many = plan_traffic(TrafficHistogram.from_dict(DOCUMENT), max_graphs=8)["decode"]
    for peer in found["peers"].values():
        assert peer["decode"]["graphs"] <= 8 and peer["decode"]["cost"] >= as_many["cost"]


def test_a_kind_without_steps_has_no_plan():
    assert plan_traffic(TrafficHistogram(decode={3: 1}))["mixed"] is None


def test_a_measured_curve_decides():
    """Buckets below 32 cost the same here: one is enough for them."""
    curve = CostCurve({1: 1.0, 32: 1.0, 64: 2.0})
    histogram = TrafficHistogram(decode={1: 10, 5: 10, 32: 10, 64: 10})
    assert plan_traffic(histogram, max_graphs=4, costs={"decode": curve})["decode"]["sizes"] == [32, 64]
    assert plan_traffic(histogram, max_graphs=4)["decode"]["sizes"] == [1, 5, 32, 64]


def test_sizes_that_were_not_measured_are_told():
    histogram = TrafficHistogram(decode={1: 10, 2: 10, 3: 10, 5: 10}, mixed={16: 1})
    found = plan_traffic(histogram, costs={"decode": CostCurve({1: 1.0, 2: 2.0, 4: 4.0})})
    assert found["decode"]["sizes"] == [1, 2, 3, 5]
    assert (found["decode"]["estimated"], found["decode"]["measured_range"]) == ([3, 5], [1, 4])
    assert (found["mixed"]["estimated"], found["mixed"]["measured_range"]) == ([], None), "tokens are counted"


def test_the_curve_between_and_beyond_measurements():
    curve = CostCurve({"10": 1.0, "20": 3.0, "30": 2.0})
    assert [curve(n) for n in (1, 10, 15, 20, 25, 30)] == [1.0, 1.0, 2.0, 3.0, 3.0, 3.0], "a lucky 30 counts as 20"
    assert CostCurve({10: 1.0, 20: 3.0})(30) == 5.0 and CostCurve({10: 4.0})(99) == 4.0


@pytest.mark.parametrize(
    "measured",
    [{}, {"a": 1}, {0: 1.0}, {4: 0}, {4: "x"}, {4: float("nan")}, {4: 10**400}, {10**400: 1}, {"4": 1, " 4": 2}],
)
def test_bad_curves(measured):
    with pytest.raises(ConfigError, match="cost curve"):
        CostCurve(measured)


def test_budgets_limit_the_graphs():
    price = GraphPrice(mib=4, capture_seconds=0.5)
    budgets = {"max_graphs": 16, "memory_budget_mib": None, "capture_seconds": None}
    assert affordable_graphs(price, **budgets) == 16
    assert affordable_graphs(price, **{**budgets, "memory_budget_mib": 21}) == 5
    assert affordable_graphs(price, **{**budgets, "capture_seconds": 1.2}) == 2
    for name, value in (
        ("max_graphs", 0),
        ("memory_budget_mib", 0.0),
        ("memory_budget_mib", 3.9),
        ("capture_seconds", -1.0),
    ):
        with pytest.raises(ConfigError, match=f"{name} of .* allows no graph"):
            affordable_graphs(price, **{**budgets, name: value})


def test_a_budget_holds_for_both_kinds_together():
    """Mixed steps have more to gain here: they get the graphs."""
    histogram = TrafficHistogram(decode={1: 10, 2: 10, 3: 10}, mixed={100: 10, 200: 10, 300: 10})
    price = GraphPrice(mib=4, capture_seconds=0.5, kv_bytes_per_token=1024)
    for budget in ({"memory_budget_mib": 16.5}, {"capture_seconds": 2.0}):
        found = plan_traffic(histogram, price=price, **budget)
        assert (found["decode"]["graphs"], found["mixed"]["graphs"]) == (1, 3)
        assert found["total"] == {"graphs": 4, "memory_mib": 16, "capture_seconds": 2, "kv_tokens_lost": 16 * 1024}
    assert plan_traffic(histogram, price=price)["total"]["graphs"] == 6
    with pytest.raises(ConfigError, match="fewer graphs than there are kinds of step") as caught:
        plan_traffic(histogram, price=price, memory_budget_mib=7)
    assert "needs 8" in caught.value.fix
    assert plan_traffic(TrafficHistogram(decode={3: 1}), price=price, memory_budget_mib=7)["total"]["graphs"] == 1


def test_kinds_in_different_units_share_no_budget():
    histogram, costs = TrafficHistogram.from_dict(DOCUMENT), {"decode": CostCurve({1: 1.0, 32: 2.0})}
    with pytest.raises(ConfigError, match="only that of decode steps was measured"):
        plan_traffic(histogram, costs=costs, memory_budget_mib=8)
    assert plan_traffic(histogram, costs=costs, memory_budget_mib=64)["total"]["graphs"] == 6, "enough for both"
    assert plan_traffic(histogram, costs=costs, max_graphs=2)["total"]["graphs"] == 4


def test_others_pay_the_same_price():
    price = GraphPrice(mib=4, capture_seconds=0.5, kv_bytes_per_token=1024)
    for peer in plan_traffic(TrafficHistogram.from_dict(DOCUMENT), price=price)["peers"].values():
        for row in peer.values():
            graphs = row["graphs"]
            assert (row["memory_mib"], row["capture_seconds"], row["kv_tokens_lost"]) == (
                4 * graphs,
                0.5 * graphs,
                4096 * graphs,
            )


def test_ladders_of_others():
    assert len(preset_ladder("vllm", "decode", largest=256)) == 35
    assert len(preset_ladder("sglang", "decode", largest=256)) == 36
    assert len(preset_ladder("tensorrt-llm", "decode", largest=256)) == 21
    assert len(preset_ladder("sglang", "mixed", largest=2048)) == 42
    assert preset_ladder("vllm", "decode", largest=9) == (1, 2, 4, 8, 16)
    with pytest.raises(UnknownNameError, match="vllm"):
        preset_ladder("vlm", "decode", largest=9)


def test_ladders_of_others_within_a_limit():
    assert preset_within("vllm", "decode", limit=9) == (1, 2, 4, 8, 9)
    assert preset_within("vllm", "decode", limit=8) == (1, 2, 4, 8)
    assert preset_within("vllm", "decode", limit=1000)[-1] == 256, "it ends where theirs does"
    for name in ("vlm", "tensorrt-llm"):
        with pytest.raises(UnknownNameError, match=name):
            preset_within(name, "mixed", limit=9)
