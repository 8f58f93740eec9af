"""Uniform decode in torch: gather every request's context as one padded block and mask on the device.

No host value depends on the live batch, so this may be captured. The cost follows the width of the block
table; callers slice it to the KV tier. Called by `TorchAttention`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.kvcache import LayerCache

__all__ = ["attend_uniform"]


def attend_uniform(
    q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float, query_len: int
) -> None:
    """Attend with ``query_len`` rows a request; see `AttentionBackend.attend`.

    Positions past a request's context are read from slot 0, which holds zeros, and not from whatever another
    request left in that page: a masked NaN would still poison the sum.
    """
    num_reqs, width = metadata.block_tables.shape
    page_size, num_kv_heads, head_dim = cache.page_size, cache.num_kv_heads, cache.head_dim
    context = width * page_size
    positions = torch.arange(context, device=q.device)
    seq_lens = metadata.seq_lens.to(torch.int64)

    offsets = torch.arange(page_size, device=q.device)
    slots = (metadata.block_tables.to(torch.int64) * page_size)[:, :, None] + offsets
    slots = torch.where(positions < seq_lens[:, None], slots.view(num_reqs, context), 0).view(-1)

    # A row sees positions up to its own. Rows of padded requests see one position, in slot 0: zeros.
    last_rows = torch.arange(1 - query_len, 1, device=q.device)
    visible = (seq_lens[:, None] + last_rows).clamp(min=1)
    mask = positions < visible[:, :, None]

    def gather(pages: Tensor) -> Tensor:
        flat = pages.view(-1, num_kv_heads, head_dim)
        return flat.index_select(0, slots).view(num_reqs, context, num_kv_heads, head_dim).transpose(1, 2)

    rows = q.reshape(num_reqs, query_len, -1, head_dim).transpose(1, 2)
    attended = scaled_dot_product_attention(
        rows, gather(cache.key), gather(cache.value), attn_mask=mask[:, None], scale=scale, enable_gqa=True
    )
    # Padded rows of q may hold anything, NaN too; theirs become zeros.
    is_live = (seq_lens > 0).view(num_reqs, 1, 1, 1)
    out.view(num_reqs, query_len, -1, head_dim).copy_(torch.where(is_live, attended.transpose(1, 2), 0.0))
