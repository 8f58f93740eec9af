"""First and marginal costs of captures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.runtime.memory.growth import CaptureCost, GraphGrowth


def cost(tokens: int, live: int, driver: int = 0, *, pool: int | None = None, kind: str = "full") -> CaptureCost:
    return CaptureCost(
        kind=kind,
        num_tokens=tokens,
        pool_bytes=live if pool is None else pool,
        live_bytes=live,
        driver_bytes=driver,
        seconds=0.1,
    )


def test_the_first_capture_lies_on_no_line() -> None:
    growth = GraphGrowth.fit([cost(64, 1_000_000, 5000), cost(32, 320, 300), cost(16, 160, 300)])
    assert growth.predict([]) == (1_000_480, 5600)
    assert growth.predict([("full", 8), ("full", 4)]) == (1_000_480 + 80 + 40, 5600 + 2 * 300)


def test_what_graphs_keep_is_what_more_of_them_add() -> None:
    """As on an H200: of three captures one finds no gap, and 20 MiB come at once; the next ones do not pay that."""
    mib = 1 << 20
    samples = [cost(1024, 4 * mib, pool=54 * mib), cost(960, 3840 << 10, pool=22 * mib), cost(896, 3584 << 10, pool=0)]
    more = [("full", tokens) for tokens in range(832, 0, -64)]
    assert GraphGrowth.fit(samples).predict(more)[0] == 76 * mib + sum(tokens * 4096 for _, tokens in more)


def test_a_line_that_falls_is_level() -> None:
    growth = GraphGrowth.fit([cost(64, 9000), cost(32, 0), cost(16, 100)])
    assert growth.predict([("full", 8)])[0] == 9100 + 50


def test_samples_of_one_size_are_averaged() -> None:
    growth = GraphGrowth.fit([cost(8, 10), cost(8, 4), cost(8, 6)])
    assert growth.predict([("full", 100)])[0] == 25


@pytest.mark.parametrize("num_samples", [0, 1, 2])
def test_three_samples_are_needed(num_samples: int) -> None:
    growth = GraphGrowth.fit([cost(8, 1)] * num_samples)
    assert growth.predict([]) == (num_samples, 0)
    with pytest.raises(ConfigError, match="few sample captures of full graphs"):
        growth.predict([("full", 4)])


def test_each_kind_has_its_own_first_capture() -> None:
    later = [*[cost(32, 3, 9, kind="piecewise")] * 2, *[cost(4, 1)] * 2]
    growth = GraphGrowth.fit([cost(64, 700, 9, kind="piecewise"), cost(8, 5000), *later])
    assert growth.predict([("full", 2), ("piecewise", 16)]) == (700 + 5000 + 6 + 2 + 1 + 3, 3 * 9 + 9)


@given(
    first=st.integers(0, 1 << 40),
    base=st.integers(0, 1 << 20),
    slope=st.integers(0, 1 << 12),
    sizes=st.lists(st.integers(1, 4096), min_size=3, max_size=8),
    more=st.lists(st.integers(1, 4096), max_size=20),
)
def test_costs_on_a_line_are_predicted_exactly(
    first: int, base: int, slope: int, sizes: list[int], more: list[int]
) -> None:
    costs = [cost(sizes[0], first), *(cost(n, base + slope * n) for n in sizes[1:])]
    predicted, _ = GraphGrowth.fit(costs).predict(("full", n) for n in more)
    exact = sum(c.pool_bytes for c in costs)
    exact += sum(base + slope * n for n in more) if len(set(sizes[1:])) > 1 else len(more) * (base + slope * sizes[1])
    if len(set(sizes[1:])) > 1 or not slope:
        assert predicted == pytest.approx(exact, rel=1e-9, abs=1)


costs_strategy = st.lists(
    st.builds(cost, st.integers(1, 4096), st.integers(0, 1 << 30), st.integers(0, 1 << 30)), min_size=3, max_size=6
)


@given(costs=costs_strategy, more=st.lists(st.integers(1, 8192), max_size=30))
def test_no_prediction_is_less_than_what_is_taken(costs: list[CaptureCost], more: list[int]) -> None:
    pool, driver = GraphGrowth.fit(costs).predict(("full", n) for n in more)
    assert pool >= sum(c.pool_bytes for c in costs) and driver >= sum(c.driver_bytes for c in costs)
