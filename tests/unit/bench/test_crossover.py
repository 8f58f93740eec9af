"""Where a graph stops paying."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.bench.crossover import crossover, largest_paying

TIMES = st.dictionaries(st.integers(1, 64), st.floats(0.1, 10), max_size=8)


@pytest.mark.parametrize(
    ("graph", "eager", "stops", "pays"),
    [
        ({1: 1.0, 8: 1.0, 64: 9.0}, {1: 5.0, 8: 5.0, 64: 9.0}, 64, 8),  # the usual picture
        ({1: 1.0, 8: 1.0}, {1: 5.0, 8: 5.0}, None, 8),  # pays everywhere
        ({1: 6.0, 8: 6.0}, {1: 5.0, 8: 5.0}, 1, None),  # pays nowhere
        ({1: 1.0, 8: 9.0, 64: 5.0}, {1: 5.0, 8: 5.0, 64: 9.0}, None, 64),  # a dent is no end
        ({1: 1.0}, {2: 1.0}, None, None),  # nothing to compare
        ({1: 0.99}, {1: 1.0}, 1, None),  # within what repeats scatter by
    ],
)
def test_by_hand(graph: dict[int, float], eager: dict[int, float], stops: int | None, pays: int | None) -> None:
    assert (crossover(graph, eager), largest_paying(graph, eager)) == (stops, pays)


@given(TIMES, TIMES)
def test_the_two_are_neighbours(graph: dict[int, float], eager: dict[int, float]) -> None:
    sizes = sorted(set(graph) & set(eager))
    stops, pays = crossover(graph, eager), largest_paying(graph, eager)
    if not sizes:
        assert (stops, pays) == (None, None)
    elif pays is None:
        assert stops == sizes[0]
    elif stops is None:
        assert pays == sizes[-1]
    else:
        assert sizes.index(stops) == sizes.index(pays) + 1
