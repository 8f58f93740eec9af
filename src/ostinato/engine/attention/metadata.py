"""What attention must know about one step: where tokens go, and which tokens each request sees.

Built by `engine.execution` for each step, in fixed buffers when a full graph reads it. Inside a full graph
nothing on the host may be read, so the host copies of the lengths are None there.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["AttentionMetadata"]


@dataclass(kw_only=True, eq=False)
class AttentionMetadata:
    """One step's batch as attention sees it; all tensors are on the model's device."""

    num_tokens: int
    """Rows that attention works on: the live ones in eager use and in breaks, all padded ones in a full graph."""
    slot_mapping: Tensor
    """[>= num_tokens] int64: ``page * page_size + offset`` of each row's token; padded rows 0 (null page)."""
    block_tables: Tensor
    """[num_reqs, max_pages] int32: the pages of each request in order; unused entries 0. Its width times the
    page size bounds every context length. Rows may be strided, entries of a row may not."""
    seq_lens: Tensor
    """[num_reqs] int32: context tokens of each request, this step's included; padded requests 0."""
    query_start: Tensor
    """[num_reqs + 1] int32: first row of each request, cumulative; padded requests repeat the last value."""
    uniform_query_len: int | None = None
    """Set when every request is a decode with exactly this many rows (padded requests too)."""
    host_query_lens: tuple[int, ...] | None = None
    """Rows of each request on the host; None in a full graph."""
    host_seq_lens: tuple[int, ...] | None = None
    """``seq_lens`` on the host; None in a full graph."""

    @property
    def num_reqs(self) -> int:
        """Requests, padded ones included."""
        return self.seq_lens.shape[0]
