"""Attention for any batch: prefill, chunks and decode mixed, each request with its own length.

A program owns a tile of one request's query tokens, for all query heads of one KV head. It finds its request
by bisecting `query_start`, so the grid follows from padded sizes alone: every request gets as many tiles as
its rows span plus one for its ragged end, and what is left after the last request zeroes padded rows.
``q`` and ``out`` may be the same tensor, since a program reads its rows before it alone writes them. The keys of
the step itself are read from where they lie side by side, if the caller has them, and only earlier ones by pages.
Called by `TritonAttention`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.triton.configs import LOG2_E, VarlenTiles, next_power_of_2, varlen_tiles
from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher
from ostinato.engine.kvcache import LayerCache

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
    key_stride,
    value_stride,
    begin,
    end,
    visible,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_PAGED: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Fold positions [begin, end) into a running softmax; unmasked, ``end - begin`` is whole tiles.

    key, value: pointers to one head of the first slot or, if it is not paged, of the first position; strides: from
    one to the next, in elements.
    """
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    for first in range(begin, end, BLOCK_N):
        positions = first + columns
        live = positions < end
        if IS_PAGED:
            if IS_MASKED:
                page = tl.load(pages + positions // PAGE_SIZE, mask=live, other=0).to(tl.int64)
            else:
                page = tl.load(pages + positions // PAGE_SIZE).to(tl.int64)
            slots = page * PAGE_SIZE + positions % PAGE_SIZE
        else:
            slots = positions.to(tl.int64)
        k_tile = key + (slots * key_stride)[:, None] + dims[None, :]
        v_tile = value + (slots * value_stride)[:, None] + dims[None, :]
        if IS_MASKED:
            k = tl.load(k_tile, mask=live[:, None], other=0.0)
            v = tl.load(v_tile, mask=live[:, None], other=0.0)
        else:
            k = tl.load(k_tile)
            v = tl.load(v_tile)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if IS_MASKED:
            scores = tl.where((positions[None, :] < visible[:, None]) & live[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale_log2)
        # A row that has seen nothing yet has peak -inf; subtracting that from itself would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores * scale_log2 - shift[:, None])  # one multiplication-addition an element
        decay = tl.exp2(peak - shift)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
        peak = new_peak
    return peak, total, acc


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_VARYING)
def _varlen_kernel(
    q,
    new_key,
    new_qkv,
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
    HAS_NEW: tl.constexpr,
):
    # Late tiles of a prompt see the most context: they start first, those of all heads.
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
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
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    pages = tables + request.to(tl.int64) * table_stride
    cached_key, cached_value = key + kv_head * HEAD_DIM, value + kv_head * HEAD_DIM
    if HAS_NEW:
        visible = tl.zeros([BLOCK_M], tl.int32) + earlier
        end = tl.maximum(earlier, 0)
        whole = end // BLOCK_N * BLOCK_N
    else:
        visible = earlier + token + 1
        end = tl.minimum(earlier + begin_token + BLOCK_Q, context)
        # Tiles that even the first row sees whole need no mask.
        whole = tl.maximum(earlier + begin_token + 1, 0) // BLOCK_N * BLOCK_N
        whole = tl.minimum(whole, tl.maximum(end, 0) // BLOCK_N * BLOCK_N)
    CACHE_STRIDE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    peak, total, acc = _fold(
        q_rows, peak, total, acc, cached_key, cached_value, pages, CACHE_STRIDE, CACHE_STRIDE, 0, whole, visible,
        scale_log2, HEAD_DIM, PAGE_SIZE, BLOCK_N, True, False,
    )  # fmt: skip
    peak, total, acc = _fold(
        q_rows, peak, total, acc, cached_key, cached_value, pages, CACHE_STRIDE, CACHE_STRIDE, whole, end, visible,
        scale_log2, HEAD_DIM, PAGE_SIZE, BLOCK_N, True, True,
    )  # fmt: skip
    if HAS_NEW:
        QKV_STRIDE: tl.constexpr = (GROUP + 2) * CACHE_STRIDE
        its_key = new_key + first_row.to(tl.int64) * CACHE_STRIDE + kv_head * HEAD_DIM
        its_value = new_qkv + first_row.to(tl.int64) * QKV_STRIDE + (GROUP + 1) * CACHE_STRIDE + kv_head * HEAD_DIM
        missing = tl.minimum(earlier, 0)  # a context shorter than its queries: the last of them see what there is
        visible = token + 1 + missing
        end = tl.minimum(begin_token + BLOCK_Q, query_len) + missing
        whole = tl.maximum(begin_token + 1 + missing, 0) // BLOCK_N * BLOCK_N
        whole = tl.minimum(whole, tl.maximum(end, 0) // BLOCK_N * BLOCK_N)
        peak, total, acc = _fold(
            q_rows, peak, total, acc, its_key, its_value, pages, CACHE_STRIDE, QKV_STRIDE, 0, whole, visible,
            scale_log2, HEAD_DIM, PAGE_SIZE, BLOCK_N, False, False,
        )  # fmt: skip
        peak, total, acc = _fold(
            q_rows, peak, total, acc, its_key, its_value, pages, CACHE_STRIDE, QKV_STRIDE, whole, end, visible,
            scale_log2, HEAD_DIM, PAGE_SIZE, BLOCK_N, False, True,
        )  # fmt: skip
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    out_tile = row * (NUM_KV_HEADS * GROUP * HEAD_DIM) + out_head
    tl.store(out + out_tile[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=is_real[:, None])


@functools.cache
def _launcher(
    dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    tiles: VarlenTiles,
    has_new: bool,
) -> Launcher:
    group = num_heads // num_kv_heads
    return Launcher(
        _varlen_kernel, f"varlen[{dtype},{num_heads},{num_kv_heads},{head_dim},{page_size},{tiles.block_m},{has_new}]",
        GROUP=group, PADDED_GROUP=next_power_of_2(group), NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        PAGE_SIZE=page_size, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, HAS_NEW=has_new,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(
    dtype: torch.dtype,
    out: torch.Size,
    cache: torch.Size,
    num_tokens: int,
    reqs: torch.Size,
    q_strides: tuple[int, ...],
    table_strides: tuple[int, ...],
    scale: float,
    has_new: bool,
) -> Launch:
    """Of these shapes and strides."""
    _, page_size, num_kv_heads, head_dim = cache
    num_rows, num_heads, _ = out
    padded_group = next_power_of_2(num_heads // num_kv_heads)
    tiles = varlen_tiles(num_tokens=num_tokens, padded_group=padded_group, head_dim=head_dim, dtype=dtype)
    block_q = tiles.block_m // padded_group
    return _launcher(dtype, num_heads, num_kv_heads, head_dim, page_size, tiles, has_new).at(
        (num_kv_heads, -(-num_rows // block_q) + reqs[0], 1),
        q_strides[0] // head_dim, table_strides[0], num_rows, reqs[0], scale * LOG2_E,
    )  # fmt: skip


def launch_varlen(
    q: Tensor,
    out: Tensor,
    cache: LayerCache,
    metadata: AttentionMetadata,
    scale: float,
    new: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Attend; see `AttentionBackend.attend`. Rows of ``out`` past the requests' become zeros, however many.

    ``new``: keys of the step itself, [>= num_tokens, num_kv_heads * head_dim], and the merged projection that they and
    its values are from, each contiguous and in the dtype of the cache; None reads all from the cache.
    """
    key, tables, seq_lens = cache.key, metadata.block_tables, metadata.seq_lens
    new_key, new_qkv = (None, None) if new is None else new
    launch = _launch(
        q.dtype, out.shape, key.shape, metadata.num_tokens, seq_lens.shape, q.stride(), tables.stride(), scale,
        new is not None,
    )  # fmt: skip
    launch(q, new_key, new_qkv, out, key, cache.value, tables, seq_lens, metadata.query_start)
