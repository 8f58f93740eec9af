"""Uniform decode, queries ready and cache written: a program for each request, KV head and part of the context.

The last program of a request and head to finish merges the parts, so one launch does it all. Requests with
no context (padding) come out as zeros. Called by `TritonAttention.attend`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.triton.configs import LOG2_E, DecodeTiles, next_power_of_2, plan_decode
from ostinato.engine.attention.triton.softmax import fold_context, merge_splits
from ostinato.engine.attention.triton.workspace import SplitWorkspace
from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher
from ostinato.engine.kvcache import LayerCache

__all__ = ["launch_decode"]

# Metadata may lie anywhere in a packed buffer, and these numbers vary from bucket to bucket: neither their
# alignment nor their value may select another compiled variant.
_VARYING = ("tables", "seq_lens", "q_stride_heads", "table_stride", "num_splits")


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_VARYING)
def _decode_kernel(
    q,
    out,
    key,
    value,
    tables,
    seq_lens,
    parts,
    counters,
    q_stride_heads,
    table_stride,
    num_splits,
    scale_log2,
    QUERY_LEN: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(seq_lens + request)
    blocks = tl.cdiv(context, BLOCK_N)
    share = tl.maximum(tl.cdiv(blocks, num_splits), MIN_BLOCKS)
    # One split always lives, so that a request without context gets its zeros.
    num_live = tl.maximum(tl.cdiv(blocks, share), 1)
    if split >= num_live:
        return

    HALF: tl.constexpr = HEAD_DIM // 2
    rows = tl.arange(0, M)
    half = tl.arange(0, HALF)
    dims = tl.arange(0, HEAD_DIM)
    token = rows // PADDED_GROUP
    head = rows % PADDED_GROUP
    is_real = (token < QUERY_LEN) & (head < GROUP)
    row = request * QUERY_LEN + token
    q_pointers = q + (row * q_stride_heads * HEAD_DIM + (kv_head * GROUP + head) * HEAD_DIM)[:, None] + half[None, :]
    q_low = tl.load(q_pointers, mask=is_real[:, None], other=0.0)
    q_high = tl.load(q_pointers + HALF, mask=is_real[:, None], other=0.0)

    begin = split * share * BLOCK_N
    end = tl.minimum(begin + share * BLOCK_N, context)
    peak = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, HEAD_DIM], tl.float32)
    peak, total, acc = fold_context(
        q_low, q_high, peak, total, acc, key, value, tables + request * table_stride, kv_head, begin, end,
        context - QUERY_LEN + 1 + token, scale_log2, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N,
    )  # fmt: skip

    is_last = num_live >= 1
    if num_live > 1:
        unit = request * NUM_KV_HEADS + kv_head
        first = unit * num_splits * M
        num_peaks = tl.num_programs(0) * NUM_KV_HEADS * num_splits * M  # of all units; as many totals lie behind them
        is_last, total, acc = merge_splits(
            parts + first, parts + num_peaks + first, parts + 2 * num_peaks + first * HEAD_DIM, counters + unit,
            peak, total, acc, is_real, split, num_live, M, HEAD_DIM, AT_ONCE,
        )  # fmt: skip
    if is_last:
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        out_row = (row * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + head) * HEAD_DIM
        tl.store(out + out_row[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=is_real[:, None])


@functools.cache
def _launcher(
    dtype: torch.dtype,
    query_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    rows: int,
    tiles: DecodeTiles,
) -> Launcher:
    group = num_heads // num_kv_heads
    return Launcher(
        _decode_kernel,
        f"decode[{dtype},{query_len},{num_heads},{num_kv_heads},{head_dim},{page_size},{tiles.block_n}]",
        QUERY_LEN=query_len, GROUP=group, PADDED_GROUP=next_power_of_2(group), NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim, PAGE_SIZE=page_size, M=rows, BLOCK_N=tiles.block_n, MIN_BLOCKS=tiles.min_blocks,
        AT_ONCE=tiles.merged_at_once, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(
    dtype: torch.dtype,
    device: torch.device,
    query_len: int,
    out: torch.Size,
    cache: torch.Size,
    tables: torch.Size,
    q_strides: tuple[int, ...],
    table_strides: tuple[int, ...],
    scale: float,
) -> tuple[Launch, int]:
    """Of these shapes and strides, and the parts that it needs."""
    _, page_size, num_kv_heads, head_dim = cache
    (num_reqs, max_pages), num_heads = tables, out[1]
    plan = plan_decode(
        num_reqs=num_reqs,
        max_context=max_pages * page_size,
        query_len=query_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
    )
    launcher = _launcher(dtype, query_len, num_heads, num_kv_heads, head_dim, page_size, plan.rows, plan.tiles)
    launch = launcher.at(
        (num_reqs, num_kv_heads, plan.num_splits),
        q_strides[0] // head_dim,
        table_strides[0],
        plan.num_splits,
        scale * LOG2_E,
    )
    return launch, plan.num_parts


def launch_decode(
    q: Tensor,
    out: Tensor,
    cache: LayerCache,
    metadata: AttentionMetadata,
    scale: float,
    query_len: int,
    workspace: SplitWorkspace,
) -> None:
    """Attend with ``query_len`` rows a request; see `AttentionBackend.attend`. Rows of ``out`` past them stay."""
    tables, key, device = metadata.block_tables, cache.key, q.device
    launch, num_parts = _launch(
        q.dtype, device, query_len, out.shape, key.shape, tables.shape, q.stride(), tables.stride(), scale
    )
    launch(q, out, key, cache.value, tables, metadata.seq_lens, *workspace.reserve(num_parts, device))
