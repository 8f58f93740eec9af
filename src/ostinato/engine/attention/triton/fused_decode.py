"""Single-token decode in one launch: QK norm, rotary embedding, the write to the cache, attention, the merge.

The new token's key and value are used from registers, by the program that holds the first part of the
context; the cache is read only up to the token before it, so no program waits for the write. Called by
`TritonAttention.rotary_attend`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.triton.configs import LOG2_E, DecodeTiles, plan_decode
from ostinato.engine.attention.triton.rotary import norm_and_rotate
from ostinato.engine.attention.triton.softmax import fold_context, merge_splits
from ostinato.engine.attention.triton.workspace import SplitWorkspace
from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher
from ostinato.engine.kernels.programmatic_launch import (
    can_launch_early,
    gdc_launch_dependents,
    gdc_wait,
    launch_options,
)
from ostinato.engine.kvcache import LayerCache

__all__ = ["launch_fused_decode"]

_VARYING = ("slots", "tables", "seq_lens", "table_stride", "num_splits")


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_VARYING)
def _fused_decode_kernel(
    qkv,
    rotary,
    out,
    key,
    value,
    q_norm,
    k_norm,
    slots,
    tables,
    seq_lens,
    parts,
    counters,
    table_stride,
    num_splits,
    scale_log2,
    eps,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    if USE_PDL:  # before the early return: kernels after this one rely on every program's wait
        gdc_launch_dependents()
        gdc_wait()
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(seq_lens + request)
    cached = tl.maximum(context - 1, 0)  # the new token is not read back from the cache
    blocks = tl.cdiv(cached, BLOCK_N)
    share = tl.maximum(tl.cdiv(blocks, num_splits), MIN_BLOCKS)
    num_live = tl.maximum(tl.cdiv(blocks, share), 1)
    if split >= num_live:
        return

    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    HALF: tl.constexpr = HEAD_DIM // 2
    dtype = key.dtype.element_ty
    head = tl.arange(0, M)
    half = tl.arange(0, HALF)
    dims = tl.arange(0, HEAD_DIM)
    is_real = head < GROUP
    line = qkv + request * ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    cos = tl.load(rotary + request * HEAD_DIM + half)
    sin = tl.load(rotary + request * HEAD_DIM + HALF + half)

    q_pointers = line + ((kv_head * GROUP + head) * HEAD_DIM)[:, None] + half[None, :]
    q_low = tl.load(q_pointers, mask=is_real[:, None], other=0.0).to(tl.float32)
    q_high = tl.load(q_pointers + HALF, mask=is_real[:, None], other=0.0).to(tl.float32)
    q_low, q_high = norm_and_rotate(q_low, q_high, cos, sin, q_norm, eps, HEAD_DIM, HAS_NORM)

    k_pointers = line + (NUM_HEADS + kv_head) * HEAD_DIM + half
    k_low = tl.load(k_pointers).to(tl.float32)[None, :]
    k_high = tl.load(k_pointers + HALF).to(tl.float32)[None, :]
    k_low, k_high = norm_and_rotate(k_low, k_high, cos, sin, k_norm, eps, HEAD_DIM, HAS_NORM)
    v = tl.load(line + (NUM_HEADS + NUM_KV_HEADS + kv_head) * HEAD_DIM + dims)

    # What other steps will read is rounded to the cache's dtype: use the same values here.
    q_low, q_high = q_low.to(dtype), q_high.to(dtype)
    k_low, k_high = k_low.to(dtype), k_high.to(dtype)

    if split == 0:
        # Padded requests write to the null page, which nobody reads.
        slot = tl.load(slots + request).to(tl.int64) * (NUM_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        tl.store(key + slot + half[None, :], k_low)
        tl.store(key + slot + HALF + half[None, :], k_high)
        tl.store(value + slot + dims, v)

    # The new token is where the first part's softmax begins; the other parts begin with nothing.
    score = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32), 1)
    score = (score + tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32), 1)) * scale_log2
    nothing = head * 0
    has_token = (nothing + split == 0) & (nothing + context > 0)
    peak = tl.where(has_token, score, float("-inf"))
    total = tl.where(has_token, 1.0, 0.0)
    acc = tl.where(has_token[:, None], v.to(tl.float32)[None, :], 0.0)

    begin = split * share * BLOCK_N
    end = tl.minimum(begin + share * BLOCK_N, cached)
    peak, total, acc = fold_context(
        q_low, q_high, peak, total, acc, key, value, tables + request * table_stride, kv_head, begin, end,
        cached + nothing, scale_log2, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N,
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
        out_row = (request * NUM_HEADS + kv_head * GROUP + head) * HEAD_DIM
        tl.store(out + out_row[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=is_real[:, None])


@functools.cache
def _launcher(
    dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    has_norm: bool,
    is_early: bool,
    rows: int,
    tiles: DecodeTiles,
) -> Launcher:
    return Launcher(
        _fused_decode_kernel,
        f"fused_decode[{dtype},{num_heads},{num_kv_heads},{head_dim},{page_size},{has_norm},{is_early},{tiles.block_n}]",
        GROUP=num_heads // num_kv_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, PAGE_SIZE=page_size,
        HAS_NORM=has_norm, M=rows, BLOCK_N=tiles.block_n, MIN_BLOCKS=tiles.min_blocks, AT_ONCE=tiles.merged_at_once,
        USE_PDL=is_early, num_warps=tiles.num_warps, num_stages=tiles.num_stages, **launch_options(is_early),
    )  # fmt: skip


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(
    dtype: torch.dtype,
    device: torch.device,
    out: torch.Size,
    cache: torch.Size,
    tables: torch.Size,
    table_strides: tuple[int, ...],
    scale: float,
    eps: float,
    has_norm: bool,
    use_pdl: bool,
) -> tuple[Launch, int]:
    """Of these shapes, and the parts that it needs."""
    _, page_size, num_kv_heads, head_dim = cache
    (num_reqs, max_pages), num_heads = tables, out[1]
    plan = plan_decode(
        num_reqs=num_reqs,
        max_context=max_pages * page_size,
        query_len=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
    )
    is_early = use_pdl and can_launch_early(device)
    launcher = _launcher(dtype, num_heads, num_kv_heads, head_dim, page_size, has_norm, is_early, plan.rows, plan.tiles)
    grid = num_reqs, num_kv_heads, plan.num_splits
    return launcher.at(grid, table_strides[0], plan.num_splits, scale * LOG2_E, eps), plan.num_parts


def launch_fused_decode(
    qkv: Tensor,
    rotary: Tensor,
    out: Tensor,
    cache: LayerCache,
    metadata: AttentionMetadata,
    scale: float,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    workspace: SplitWorkspace,
    *,
    use_pdl: bool = False,
) -> None:
    """One decode token a request; see `FusedAttentionBackend.rotary_attend`. Rows of ``out`` past them stay.

    ``use_pdl``: launch early if possible.
    """
    tables, key, device = metadata.block_tables, cache.key, qkv.device
    launch, num_parts = _launch(
        qkv.dtype, device, out.shape, key.shape, tables.shape, tables.stride(), scale, eps, q_norm is not None, use_pdl
    )
    launch(
        qkv, rotary, out, key, cache.value, q_norm, k_norm, metadata.slot_mapping, tables, metadata.seq_lens,
        *workspace.reserve(num_parts, device),
    )  # fmt: skip
