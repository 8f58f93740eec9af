"""Prefill and mixed batches in torch: one request after another, by their lengths on the host.

Never legal inside a full graph, since those lengths would freeze. Called by `TorchAttention`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.kvcache import LayerCache
from ostinato.errors import RuntimeStateError

__all__ = ["attend_per_request"]


def attend_per_request(q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float) -> None:
    """Attend request by request; see `AttentionBackend.attend`.

    Raises:
        RuntimeStateError: the metadata carries no host lengths, as inside a full graph.
    """
    if metadata.host_query_lens is None or metadata.host_seq_lens is None:
        raise RuntimeStateError(
            "torch attention needs lengths on the host for a batch that is not uniform",
            fix="run such batches eagerly or in a piecewise graph, or use attention='triton'",
        )
    row = 0
    for request, (query_len, seq_len) in enumerate(zip(metadata.host_query_lens, metadata.host_seq_lens, strict=True)):
        if query_len and seq_len:
            _attend_one(q[row : row + query_len], out[row : row + query_len], cache, metadata, request, seq_len, scale)
        else:
            out[row : row + query_len].zero_()
        row += query_len
    out[row:].zero_()


def _attend_one(
    q: Tensor,
    out: Tensor,
    cache: LayerCache,
    metadata: AttentionMetadata,
    request: int,
    seq_len: int,
    scale: float,
) -> None:
    query_len = q.shape[0]
    pages = metadata.block_tables[request, : -(-seq_len // cache.page_size)]

    def gather(stored: Tensor) -> Tensor:
        rows = stored.index_select(0, pages).view(-1, cache.num_kv_heads, cache.head_dim)
        return rows[:seq_len].transpose(0, 1)[None]

    mask = None
    if query_len not in (1, seq_len):  # a chunk in the middle of a prompt
        columns = torch.arange(seq_len, device=q.device)
        mask = columns <= torch.arange(seq_len - query_len, seq_len, device=q.device)[:, None]
    attended = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        gather(cache.key),
        gather(cache.value),
        attn_mask=mask,
        is_causal=query_len == seq_len and query_len > 1,
        scale=scale,
        enable_gqa=True,
    )
    out.copy_(attended[0].transpose(0, 1))
