"""How many pages fit into a number of bytes: pure arithmetic, no torch.

Page 0 is the null page (padded rows write there), so it is counted but holds no request's tokens.
Used by `engine.execution` when it sizes the cache and by the memory report.
"""

from __future__ import annotations

from ostinato.engine.paging import pages_for

__all__ = ["bytes_per_token", "how_many_pages", "pages_for_tokens"]


def bytes_per_token(*, num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Bytes that one token's keys and values take over all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * element_bytes


def how_many_pages(*, budget_bytes: int, page_size: int, token_bytes: int) -> int:
    """Pages, the null page included, that ``budget_bytes`` holds; 0 when not even one fits.

    Args:
        budget_bytes: bytes left for the cache; a negative budget counts as none.
        page_size: tokens a page.
        token_bytes: from `bytes_per_token`.
    """
    return max(budget_bytes, 0) // (page_size * token_bytes)


def pages_for_tokens(*, num_tokens: int, page_size: int) -> int:
    """Pages, the null page included, that are needed to hold ``num_tokens`` tokens."""
    return 1 + pages_for(num_tokens, page_size)
