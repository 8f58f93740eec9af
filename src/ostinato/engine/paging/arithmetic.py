"""From token positions to pages and slots.

A slot is ``page * page_size + offset``: the row of one token in the flattened KV cache. Nothing here
knows who owns a page. Called by the allocator's users: scheduler and batch tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ostinato.errors import PageIntegrityError

__all__ = ["NULL_PAGE", "pages_for", "slots_for"]

NULL_PAGE: Final = 0  # padded rows write here, so it never belongs to a request


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold ``num_tokens`` tokens."""
    return -(-num_tokens // page_size)


def slots_for(pages: Sequence[int], start: int, num_tokens: int, page_size: int) -> list[int]:
    """Slots of tokens ``[start, start + num_tokens)`` of a request that owns ``pages``.

    Raises:
        PageIntegrityError: the last token lies past the pages, so it has no slot.
    """
    end = start + num_tokens
    if end > len(pages) * page_size:
        message = f"token {end - 1} has no slot"
        raise PageIntegrityError(message, num_pages=len(pages), page_size=page_size, start=start, num_tokens=num_tokens)
    return [pages[i // page_size] * page_size + i % page_size for i in range(start, end)]
