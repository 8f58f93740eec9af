"""Page storage as tensors: what one layer's cache is, how it is allocated, and how many pages fit."""

from ostinato.engine.kvcache.budget import bytes_per_token, how_many_pages, pages_for_tokens
from ostinato.engine.kvcache.storage import LayerCache, allocate_caches, by_slot, caches_over, named_pages

__all__ = [
    "LayerCache",
    "allocate_caches",
    "by_slot",
    "bytes_per_token",
    "caches_over",
    "how_many_pages",
    "named_pages",
    "pages_for_tokens",
]
