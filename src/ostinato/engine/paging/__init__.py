"""Page arithmetic and the page allocator. Pure Python: numbers of pages, never their contents."""

from __future__ import annotations

from ostinato.engine.paging.allocator import PageAllocator
from ostinato.engine.paging.arithmetic import NULL_PAGE, pages_for, slots_for

__all__ = ["NULL_PAGE", "PageAllocator", "pages_for", "slots_for"]
