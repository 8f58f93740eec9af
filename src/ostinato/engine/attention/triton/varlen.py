"""Attention for any batch: prefill, chunks and decode mixed, each request with its own length.

A program owns a tile of one request's query tokens, for all query heads of one KV head. It finds its request
by bisecting `query_start`, so the grid follows from padded sizes alone: every request gets as many tiles as
its rows span plus one for its ragged end, and what is left after the last request zeroes padded rows.
``q`` and ``out`` may be the same tensor, since a program reads its rows before it alone writes them.
Called by `TritonAttention`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.triton.configs import LOG2_E, next_power_of_2, varlen_tiles
from ostinato.engine.kvcache import LayerCache
from ostinato.runtime.breaks import jit_mark

__all__ = ["launch_varlen"]

_VARYING = ("tables", "seq_lens", "query_start", "q_stride_heads", "table_stride", "num_tokens", "num_reqs")


@triton.jit
def _fold(
    q,
    peak,
    total,
    acc,
    key,
    value,
    pages,
    kv_head,
    begin,
    end,
    visible,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Fold positions [begin, end) into a running softmax; unmasked, ``end - begin`` is whole tiles."""
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    for first in range(begin, end, BLOCK_N):
        positions = first + columns
        if IS_MASKED:
            live = positions < end
            page = tl.load(pages + positions // PAGE_SIZE, mask=live, other=0).to(tl.int64)
        else:
            page = tl.load(pages + positions // PAGE_SIZE).to(tl.int64)
        base = (page * PAGE_SIZE + positions % PAGE_SIZE) * (NUM_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        tile = base[:, None] + dims[None, :]
        if IS_MASKED:
            k = tl.load(key + tile, mask=live[:, None], other=0.0)
            v = tl.load(value + tile, mask=live[:, None], other=0.0)
        else:
            k = tl.load(key + tile)
            v = tl.load(value + tile)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        if IS_MASKED:
            scores = tl.where(positions[None, :] < visible[:, None], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet has peak -inf; subtracting that from itself would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(peak - shift)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
        peak = new_peak
    return peak, total, acc


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_VARYING)
def _varlen_kernel(
    q,
    out,
    key,
    value,
    tables,
    seq_lens,
    query_start,
    q_stride_heads,
    table_stride,
    num_tokens,
    num_reqs,
    scale_log2,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # Late tiles of a prompt see the most context: they start first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    BLOCK_Q: tl.constexpr = BLOCK_M // PADDED_GROUP

    # Request r owns the tiles from query_start[r] // BLOCK_Q + r on; find the last r that begins by here.
    # r == num_reqs stands for the padded rows.
    request = tl.full([], 0, tl.int32)
    high = num_reqs
    while request < high:
        middle = (request + high + 1) // 2
        if tl.load(query_start + middle) // BLOCK_Q + middle <= tile:
            request = middle
        else:
            high = middle - 1

    first_row = tl.load(query_start + request)
    rows = tl.arange(0, BLOCK_M)
    token = rows // PADDED_GROUP
    head = rows % PADDED_GROUP
    dims = tl.arange(0, HEAD_DIM)
    out_head = (kv_head * GROUP + head) * HEAD_DIM

    if request == num_reqs:
        padded = (tile - request) * BLOCK_Q + token
        is_padded = (padded >= first_row) & (padded < num_tokens) & (head < GROUP)
        out_tile = padded.to(tl.int64) * (NUM_KV_HEADS * GROUP * HEAD_DIM) + out_head
        zeros = tl.zeros([BLOCK_M, HEAD_DIM], out.dtype.element_ty)
        tl.store(out + out_tile[:, None] + dims[None, :], zeros, mask=is_padded[:, None])
        return

    query_len = tl.load(query_start + request + 1) - first_row
    begin_token = (tile - first_row // BLOCK_Q - request) * BLOCK_Q
    if begin_token >= query_len:
        return
    context = tl.load(seq_lens + request)
    token = begin_token + token
    is_real = (token < query_len) & (head < GROUP)
    row = (first_row + token).to(tl.int64)
    q_tile = q + (row * q_stride_heads * HEAD_DIM + out_head)[:, None] + dims[None, :]
    q_rows = tl.load(q_tile, mask=is_real[:, None], other=0.0)

    earlier = context - query_len  # tokens that came in earlier steps
    visible = earlier + token + 1
    end = tl.minimum(earlier + begin_token + BLOCK_Q, context)
    # Tiles that even the first row sees whole need no mask.
    whole = tl.maximum(earlier + begin_token + 1, 0) // BLOCK_N * BLOCK_N
    whole = tl.minimum(whole, tl.maximum(end, 0) // BLOCK_N * BLOCK_N)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    pages = tables + request.to(tl.int64) * table_stride
    peak, total, acc = _fold(
        q_rows, peak, total, acc, key, value, pages, kv_head, 0, whole, visible, scale_log2,
        NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N, False,
    )  # fmt: skip
    peak, total, acc = _fold(
        q_rows, peak, total, acc, key, value, pages, kv_head, whole, end, visible, scale_log2,
        NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N, True,
    )  # fmt: skip
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    out_tile = row * (NUM_KV_HEADS * GROUP * HEAD_DIM) + out_head
    tl.store(out + out_tile[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=is_real[:, None])


def launch_varlen(q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float) -> None:
    """Attend; see `AttentionBackend.attend`."""
    num_tokens, num_heads, head_dim = out.shape
    num_reqs = metadata.num_reqs
    group = num_heads // cache.num_kv_heads
    padded_group = next_power_of_2(group)
    tiles = varlen_tiles(num_tokens=num_tokens, padded_group=padded_group, head_dim=head_dim, dtype=q.dtype)
    block_q = tiles.block_m // padded_group
    jit_mark(f"varlen[{q.dtype},{num_heads},{cache.num_kv_heads},{head_dim},{cache.page_size},{tiles.block_m}]")
    _varlen_kernel[(-(-num_tokens // block_q) + num_reqs, cache.num_kv_heads)](
        q, out, cache.key, cache.value, metadata.block_tables, metadata.seq_lens, metadata.query_start,
        q.stride(0) // head_dim, metadata.block_tables.stride(0), num_tokens, num_reqs, scale * LOG2_E,
        GROUP=group, PADDED_GROUP=padded_group, NUM_KV_HEADS=cache.num_kv_heads, HEAD_DIM=head_dim,
        PAGE_SIZE=cache.page_size, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
