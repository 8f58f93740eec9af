"""Hands out page numbers and takes them back; keeps books that can be checked.

Page 0, the null page, is never handed out. An allocation is all or nothing. Freed pages are reused
first, so a stale reader meets new contents soon, in a test rather than in production. Who is preempted
when pages run out is the scheduler's decision. Called by the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ostinato.engine.paging.arithmetic import NULL_PAGE
from ostinato.errors import ConfigError, PageIntegrityError

__all__ = ["PageAllocator"]


class PageAllocator:
    """Pages ``1 .. num_pages - 1`` of ``page_size`` tokens each.

    Args:
        num_pages: all pages, the null page included; at least 2.
        page_size: tokens in a page.

    Raises:
        ConfigError: there is no page to hand out, or pages hold nothing.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 2:
            fix = "give the KV cache more memory or set kv_tokens"
            raise ConfigError(f"num_pages must be >= 2 (page 0 is the null page), got {num_pages}", fix=fix)
        if page_size < 1:
            raise ConfigError(f"page_size must be >= 1, got {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, NULL_PAGE, -1))  # a stack: the lowest page goes first
        self._used: set[int] = set()

    @property
    def num_free_pages(self) -> int:
        return len(self._free)

    @property
    def num_usable_pages(self) -> int:
        """Pages that could ever be handed out: all but the null page."""
        return self.num_pages - 1

    def allocate(self, num_pages: int) -> list[int] | None:
        """Take ``num_pages`` pages, or None (and take nothing) when there are not enough."""
        if num_pages < 0:
            raise PageIntegrityError(f"cannot allocate {num_pages} pages")
        if num_pages > len(self._free):
            return None
        first = len(self._free) - num_pages
        taken = self._free[first:]
        del self._free[first:]
        taken.reverse()
        self._used.update(taken)
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back.

        Raises:
            PageIntegrityError: a page is the null page, does not exist or is not in use (freed twice).
                Then nothing is freed.
        """
        if len(set(pages)) < len(pages) or not self._used.issuperset(pages):
            raise self._not_in_use(pages)
        self._used.difference_update(pages)
        self._free.extend(reversed(pages))

    def check_integrity(self, owned: Iterable[Sequence[int]]) -> None:
        """Compare the books with what the owners hold.

        Args:
            owned: the pages of every owner; together they must be exactly the pages in use.

        Raises:
            PageIntegrityError: a page is shared, lost (in use without an owner), owned but not in use, or
                the free list disagrees with the use marks.
        """
        owner_of: dict[int, int] = {}
        for owner, pages in enumerate(owned):
            for page in pages:
                if page in owner_of:
                    raise PageIntegrityError(f"page {page} is shared", page=page, owners=(owner_of[page], owner))
                if page not in self._used:
                    raise PageIntegrityError(f"page {page} is owned but not in use", page=page, owner=owner)
                owner_of[page] = owner
        lost = sorted(self._used - owner_of.keys())
        if lost:
            raise PageIntegrityError(f"{len(lost)} pages are in use without an owner", pages=lost[:8])
        expected_free = set(range(1, self.num_pages)) - self._used
        if len(self._free) != len(expected_free) or set(self._free) != expected_free:
            raise PageIntegrityError("the free list is wrong", expected=len(expected_free), got=len(self._free))

    def _not_in_use(self, pages: Sequence[int]) -> PageIntegrityError:
        """Of the first of ``pages`` that cannot be freed."""
        seen: set[int] = set()
        for page in pages:
            if not NULL_PAGE < page < self.num_pages:
                return PageIntegrityError(f"page {page} was never handed out", page=page, num_pages=self.num_pages)
            if page in seen or page not in self._used:
                break
            seen.add(page)
        return PageIntegrityError(f"page {page} is freed twice", page=page)
