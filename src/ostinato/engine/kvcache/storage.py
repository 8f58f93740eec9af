"""The tensors that hold keys and values, one pair a layer.

Which page belongs to whom is the business of `engine.paging`; reading and writing that of
`engine.attention`. Graphs hold these addresses, so they never move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LayerCache", "allocate_caches", "by_slot", "caches_over", "named_pages"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerCache:
    """One layer's pages. Slot ``page * page_size + offset`` holds one token; slot 0 takes padded rows."""

    key: Tensor
    """[num_pages, page_size, num_kv_heads, head_dim], contiguous."""
    value: Tensor
    """Like ``key``."""

    @property
    def num_pages(self) -> int:
        """Pages, the null page included."""
        return self.key.shape[0]

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self.key.shape[1]

    def first(self, num_pages: int) -> LayerCache:
        """The first ``num_pages`` of these pages; a view."""
        return LayerCache(key=self.key[:num_pages], value=self.value[:num_pages])

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.key.shape[2]

    @property
    def head_dim(self) -> int:
        """Elements a head."""
        return self.key.shape[3]


def allocate_caches(
    *,
    num_layers: int,
    num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> list[LayerCache]:
    """Zeroed caches for ``num_layers`` layers, as views of one allocation.

    Zeroed, so that a slot nobody has written yet is finite whoever reads it.
    """
    page = (page_size, num_kv_heads, head_dim)
    num_bytes = num_pages * math.prod(page) * dtype.itemsize
    memory = torch.zeros((2 * num_layers, num_bytes), dtype=torch.uint8, device=device)
    return caches_over(memory, num_pages=num_pages, page=page, dtype=dtype)


def caches_over(memory: Tensor, *, num_pages: int, page: tuple[int, int, int], dtype: torch.dtype) -> list[LayerCache]:
    """Caches in ``memory``, [2 * num_layers, at least the bytes of num_pages] uint8: a layer's keys, then its values.

    Args:
        page: (page_size, num_kv_heads, head_dim).
    """
    num_bytes = num_pages * math.prod(page) * dtype.itemsize
    parts = [part[:num_bytes].view(dtype).view(num_pages, *page) for part in memory]
    return [LayerCache(key=key, value=value) for key, value in zip(parts[::2], parts[1::2], strict=True)]


def named_pages(caches: Iterable[LayerCache]) -> Iterator[tuple[str, Tensor]]:
    """The keys and the values of every layer, with the names that findings give them."""
    for layer, cache in enumerate(caches):
        yield f"keys of layer {layer}", cache.key
        yield f"values of layer {layer}", cache.value


def by_slot(pages: Tensor) -> Tensor:
    """``pages``, [num_pages, page_size, num_kv_heads, head_dim], as [num_slots, num_kv_heads, head_dim]; a view."""
    return pages.view(-1, *pages.shape[2:])
