"""PageAllocator: no page shared, lost or freed twice, and books that notice when one is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.paging import NULL_PAGE, PageAllocator
from ostinato.errors import ConfigError, PageIntegrityError


@given(
    num_pages=st.integers(2, 20),
    actions=st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60),
)
def test_random_use_keeps_the_books(num_pages: int, actions: list[tuple[bool, int]]) -> None:
    allocator = PageAllocator(num_pages, 4)
    owned: list[list[int]] = []
    for is_allocation, amount in actions:
        num_free = allocator.num_free_pages
        if is_allocation:
            pages = allocator.allocate(amount)
            if amount > num_free:
                assert pages is None and allocator.num_free_pages == num_free
            else:
                assert pages is not None and len(pages) == amount
                owned.append(pages)
        elif owned:
            pages = owned.pop(amount % len(owned))
            allocator.free(pages)
            assert allocator.num_free_pages == num_free + len(pages)
        in_use = [page for pages in owned for page in pages]
        assert len(set(in_use)) == len(in_use)
        assert NULL_PAGE not in in_use
        assert all(0 < page < num_pages for page in in_use)
        assert allocator.num_free_pages + len(in_use) == allocator.num_usable_pages == num_pages - 1
        allocator.check_integrity(owned)


def test_all_usable_pages_can_be_taken_and_no_more() -> None:
    allocator = PageAllocator(5, 16)
    assert sorted(allocator.allocate(4) or []) == [1, 2, 3, 4]
    assert allocator.allocate(1) is None
    assert allocator.allocate(0) == []


def test_freed_pages_are_reused_first() -> None:
    allocator = PageAllocator(10, 16)
    pages = allocator.allocate(3)
    assert pages is not None
    allocator.free(pages)
    assert allocator.allocate(3) == pages


@pytest.mark.parametrize("pages", [[1, 1], [1, 3], [3], [NULL_PAGE], [-1], [9], [1, NULL_PAGE]])
def test_a_bad_free_is_refused_and_frees_nothing(pages: list[int]) -> None:
    allocator = PageAllocator(9, 16)
    owned = allocator.allocate(2)
    assert owned == [1, 2]
    with pytest.raises(PageIntegrityError):
        allocator.free(pages)
    allocator.check_integrity([owned])


def test_a_double_free_is_named() -> None:
    allocator = PageAllocator(4, 16)
    pages = allocator.allocate(1) or []
    allocator.free(pages)
    with pytest.raises(PageIntegrityError, match="page 1 is freed twice"):
        allocator.free(pages)


@pytest.mark.parametrize(
    ("owned", "message"),
    [
        ([[1, 2], [2]], "page 2 is shared"),
        ([[1, 1, 2]], "page 1 is shared"),
        ([[1]], "without an owner"),
        ([[1, 2, 3]], "page 3 is owned but not in use"),
        ([[1, 2, NULL_PAGE]], "page 0 is owned but not in use"),
        ([[1, 2, 99]], "page 99 is owned but not in use"),
    ],
)
def test_integrity_check_finds_each_fault(owned: list[list[int]], message: str) -> None:
    allocator = PageAllocator(6, 16)
    assert allocator.allocate(2) == [1, 2]
    with pytest.raises(PageIntegrityError, match=message):
        allocator.check_integrity(owned)


def test_integrity_check_finds_a_broken_free_list() -> None:
    allocator = PageAllocator(4, 16)
    allocator._free[0] = allocator._free[1]
    with pytest.raises(PageIntegrityError, match="free list"):
        allocator.check_integrity([])


@pytest.mark.parametrize(("num_pages", "page_size"), [(1, 16), (0, 16), (2, 0)])
def test_sizes_that_hold_nothing_are_refused(num_pages: int, page_size: int) -> None:
    with pytest.raises(ConfigError):
        PageAllocator(num_pages, page_size)


def test_a_negative_amount_is_refused() -> None:
    with pytest.raises(PageIntegrityError):
        PageAllocator(4, 16).allocate(-1)
