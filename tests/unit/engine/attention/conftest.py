"""Random paged batches, and what attention over them must give, computed densely from the full histories."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ostinato.engine.attention import AttentionMetadata
from ostinato.engine.kvcache import LayerCache, allocate_caches

PAGE_SIZE = 4


@dataclass
class Batch:
    """One step: everything a backend gets, and the dense history of each request."""

    q: Tensor
    k: Tensor
    v: Tensor
    cache: LayerCache
    metadata: AttentionMetadata
    histories: list[tuple[Tensor, Tensor]]  # per live request: keys and values of earlier tokens
    query_lens: list[int]
    scale: float

    def expected(self, k: Tensor | None = None, q: Tensor | None = None) -> Tensor:
        """The outputs, request by request and head by head, with zeros in padded rows."""
        q = self.q if q is None else q
        k = self.k if k is None else k
        out = torch.zeros_like(q)
        row = 0
        for (old_k, old_v), length in zip(self.histories, self.query_lens, strict=True):
            keys = torch.cat((old_k, k[row : row + length])).double()
            values = torch.cat((old_v, self.v[row : row + length])).double()
            group = q.shape[1] // keys.shape[1]
            for token in range(length):
                seen = old_k.shape[0] + token + 1
                for head in range(q.shape[1]):
                    scores = keys[:seen, head // group] @ q[row + token, head].double() * self.scale
                    out[row + token, head] = (scores.softmax(0) @ values[:seen, head // group]).to(q.dtype)
            row += length
        return out

    def stored(self, pages: Tensor) -> list[Tensor]:
        """Each live request's tokens as the cache holds them now."""
        flat = pages.flatten(0, 1)
        tables, lens = self.metadata.block_tables, self.metadata.seq_lens
        rows = []
        for request in range(len(self.query_lens)):
            positions = torch.arange(int(lens[request]))
            page = tables[request].long()[positions // self.cache.page_size]
            rows.append(flat[page * self.cache.page_size + positions % self.cache.page_size])
        return rows


class BatchMaker:
    """Makes batches on the CPU."""

    def __call__(
        self,
        query_lens: list[int],
        context_lens: list[int],
        *,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 32,
        dtype: torch.dtype = torch.float32,
        uniform: int | None = None,
        padded_reqs: int = 0,
        padded_rows: int = 0,
        extra_pages: int = 1,
        poison: float = float("nan"),
        in_graph: bool = False,
        seed: int = 0,
    ) -> Batch:
        """A batch whose requests bring ``query_lens`` tokens to a context that then has ``context_lens``.

        Everything that nobody may read holds ``poison``: unused slots, and the padded rows of q, k and v.
        """
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        num_heads, num_kv_heads = heads
        num_reqs = len(query_lens) + padded_reqs
        live = sum(query_lens)
        num_tokens = live + padded_rows
        width = max(math.ceil(n / PAGE_SIZE) for n in context_lens) + extra_pages
        num_pages = 1 + sum(math.ceil(n / PAGE_SIZE) for n in context_lens)
        (cache,) = allocate_caches(
            num_layers=1,
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            device="cpu",
        )
        for pages in (cache.key, cache.value):
            pages.fill_(poison)
            pages[0].zero_()
        # A wider table than the batch needs, so that rows are strided as after slicing to a KV tier.
        tables = torch.zeros(num_reqs, width + 3, dtype=torch.int32)[:, :width]
        order = (torch.randperm(num_pages - 1, generator=generator) + 1).tolist()
        slots: list[int] = []
        histories = []
        for request, (length, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            pages = [order.pop() for _ in range(math.ceil(context / PAGE_SIZE))]
            tables[request, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
            places = [pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(context)]
            old = random(context - length, num_kv_heads, head_dim), random(context - length, num_kv_heads, head_dim)
            for stored, rows in zip((cache.key, cache.value), old, strict=True):
                stored.flatten(0, 1)[places[: context - length]] = rows
            slots += places[context - length :]
            histories.append(old)
        qkv = random(num_tokens, num_heads + 2 * num_kv_heads, head_dim)
        qkv[live:] = poison
        q, k, v = qkv.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        start = torch.tensor([0, *query_lens, *[0] * padded_reqs]).cumsum(0).to(torch.int32)
        metadata = AttentionMetadata(
            num_tokens=num_tokens,
            slot_mapping=torch.tensor(slots + [0] * padded_rows),
            block_tables=tables,
            seq_lens=torch.tensor(context_lens + [0] * padded_reqs, dtype=torch.int32),
            query_start=start,
            uniform_query_len=uniform,
            host_query_lens=None if in_graph else (*query_lens, *[0] * padded_reqs),
            host_seq_lens=None if in_graph else (*context_lens, *[0] * padded_reqs),
        )
        return Batch(q, k, v, cache, metadata, histories, query_lens, head_dim**-0.5)


@pytest.fixture
def make_batch() -> BatchMaker:
    """Makes random batches."""
    return BatchMaker()
