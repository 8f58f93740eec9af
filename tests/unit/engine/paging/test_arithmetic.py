"""Page and slot arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.paging import pages_for, slots_for
from ostinato.errors import PageIntegrityError


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens, 16) == pages


def test_slots_cross_pages_in_the_order_owned() -> None:
    assert slots_for([7, 2], 2, 4, 4) == [30, 31, 8, 9]
    assert slots_for([7, 2], 0, 0, 4) == []


@given(st.integers(1, 9), st.lists(st.integers(1, 99), unique=True, max_size=6), st.data())
def test_each_token_has_a_slot_of_its_own_in_an_owned_page(
    page_size: int, pages: list[int], data: st.DataObject
) -> None:
    capacity = len(pages) * page_size
    start = data.draw(st.integers(0, capacity))
    slots = slots_for(pages, start, capacity - start, page_size)
    assert len(set(slots)) == capacity - start
    assert all(slot // page_size in pages for slot in slots)
    assert slots == slots_for(pages, 0, capacity, page_size)[start:]
    with pytest.raises(PageIntegrityError, match="no slot"):
        slots_for(pages, start, capacity - start + 1, page_size)
