"""Running every kernel variant once on a tiny cache, so that nothing compiles later. Called by `TritonAttention`."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.engine.attention.backend import AttentionShape, FusedAttentionBackend
from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.triton.configs import variant_num_reqs, variant_num_tokens
from ostinato.engine.kvcache import allocate_caches

__all__ = ["run_all_kernels"]


def run_all_kernels(backend: FusedAttentionBackend, shape: AttentionShape) -> None:
    """Run uniform batches of each length and mixed batches of each tile size, fused and not."""
    uniform = [
        _metadata(num_reqs, length, length, shape)
        for length in shape.uniform_query_lens
        for num_reqs in variant_num_reqs(shape.num_kv_heads, shape.device)
    ]
    mixed = [_metadata(1, length, None, shape) for length in variant_num_tokens()]
    for metadata in (*uniform, *mixed):
        _run(backend, shape, metadata)


def _metadata(num_reqs: int, query_len: int, uniform: int | None, shape: AttentionShape) -> AttentionMetadata:
    """A batch whose rows all go to the null page and whose requests have no context: the kernels only exit."""
    num_tokens = num_reqs * query_len

    def zeros(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=shape.device)

    return AttentionMetadata(
        num_tokens=num_tokens,
        slot_mapping=zeros(num_tokens, torch.int64),
        block_tables=zeros(num_reqs).view(num_reqs, 1),
        seq_lens=zeros(num_reqs),
        query_start=zeros(num_reqs + 1),
        uniform_query_len=uniform,
    )


def _run(backend: FusedAttentionBackend, shape: AttentionShape, metadata: AttentionMetadata) -> None:
    (cache,) = allocate_caches(
        num_layers=1,
        num_pages=1,
        page_size=shape.page_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=shape.device,
    )
    heads, kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    width = (heads + 2 * kv_heads) * head_dim
    qkv = torch.zeros(metadata.num_tokens, width, dtype=shape.dtype, device=shape.device)
    rotary = torch.zeros(metadata.num_tokens, head_dim, device=shape.device)
    out = torch.empty(metadata.num_tokens, heads, head_dim, dtype=shape.dtype, device=shape.device)
    norm = torch.ones(head_dim, dtype=shape.dtype, device=shape.device) if shape.has_qk_norm else None
    q, k, v = qkv.view(metadata.num_tokens, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    backend.write_kv(k, v, cache, metadata)
    backend.attend(q, out, cache, metadata, 1.0)
    backend.rotary_attend(qkv, rotary, out, cache, metadata, 1.0, norm, norm, 1e-6)
