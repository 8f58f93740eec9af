"""A linear layer of up to 16 rows, with what surrounds it: RMS norm before; bias, gating or residual after.

The weight's tile is the left operand of the tensor cores and the transposed input the right one, padded to 16
rows. Each program runs over the whole depth, so no sum depends on which program comes first. Called by
`FusedLinears`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.attention.triton.programmatic_launch import gdc_launch_dependents, gdc_wait, launch_options
from ostinato.engine.layers.linear_tiles import MAX_FEW_ROWS, LinearTiles
from ostinato.runtime.breaks import jit_mark

__all__ = ["launch_matrix"]

# What a program asks of its rows of the weight before its input is complete, at most.
_PREFETCH_BYTES = 64 * 1024
_LINE_BYTES = 128


@triton.jit
def _prefetch(pointers):
    """Bring lines into L2; holds no register, so it may run far ahead."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _load(pointers, is_inside, is_deep, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr):
    """A tile of the weight or, with rows for columns, of the input."""
    if EVEN_N and EVEN_K:
        return tl.load(pointers)
    elif EVEN_K:
        return tl.load(pointers, mask=is_inside[:, None], other=0.0)
    else:
        return tl.load(pointers, mask=is_inside[:, None] & is_deep[None, :], other=0.0)


@triton.jit(do_not_specialize=("num_rows",))
def _matrix_kernel(
    x,
    norm_weight,
    weight,
    bias,
    residual,
    out,
    eps,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    NORMS_FIRST: tl.constexpr,
    SCALES_AHEAD: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    USE_PDL: tl.constexpr,
    NUM_LINES: tl.constexpr,
    LINE: tl.constexpr,
):
    EVEN_N: tl.constexpr = N % BLOCK_N == 0
    EVEN_K: tl.constexpr = K % BLOCK_K == 0
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < N
    row = tl.arange(0, ROWS)
    is_row = row < num_rows
    depth = tl.arange(0, BLOCK_K)
    begin = column.to(tl.int64)[:, None] * K
    if HAS_NORM and SCALES_AHEAD:
        scale = tl.load(norm_weight + depth, mask=depth < K, other=0.0)
    if USE_PDL:
        if NUM_LINES > 0:  # the weight never changes: it is on its way before the input is complete
            start = tl.minimum(column, N - 1).to(tl.int64)[:, None] * K
            line = tl.minimum(tl.arange(0, NUM_LINES) * LINE, K - 1)[None, :]
            _prefetch(weight + start + line)
            if IS_GATED:
                _prefetch(weight + N * K + start + line)
        gdc_launch_dependents()
        gdc_wait()
    place = row[None, :] * N + column[:, None]
    is_inside = is_column[:, None] & is_row[None, :]
    if HAS_RESIDUAL:
        stream = tl.load(residual + place, mask=is_inside, other=0.0)

    x_pointers = x + row[:, None] * K + depth[None, :]
    pointers = weight + begin + depth[None, :]
    if HAS_NORM:
        squares = tl.zeros([ROWS, BLOCK_K], tl.float32)
        if NORMS_FIRST:
            for offset in range(0, K, BLOCK_K):
                wide = _load(x_pointers + offset, is_row, depth < K - offset, False, EVEN_K).to(tl.float32)
                squares += wide * wide
            inverse = tl.rsqrt(tl.sum(squares, 1) / K + eps)

    acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
    if IS_GATED:
        up_acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
    for offset in range(0, K, BLOCK_K):
        is_deep = depth < K - offset
        tile = _load(pointers + offset, is_column, is_deep, EVEN_N, EVEN_K)
        if IS_GATED:
            up_tile = _load(pointers + (N * K + offset), is_column, is_deep, EVEN_N, EVEN_K)
        values = _load(x_pointers + offset, is_row, is_deep, False, EVEN_K)
        if HAS_NORM:
            wide = values.to(tl.float32)
            if NORMS_FIRST:
                wide = wide * inverse[:, None]
            else:
                squares += wide * wide
            if not SCALES_AHEAD:
                scale = tl.load(norm_weight + offset + depth, mask=is_deep, other=0.0)
            values = (wide * scale.to(tl.float32)[None, :]).to(x.dtype.element_ty)
            if SCALES_AHEAD:
                next_offset = offset + BLOCK_K
                scale = tl.load(norm_weight + next_offset + depth, mask=depth < K - next_offset, other=0.0)
        values = tl.trans(values)
        acc = tl.dot(tile, values, acc)
        if IS_GATED:
            up_acc = tl.dot(up_tile, values, up_acc)

    if HAS_NORM and not NORMS_FIRST:
        inverse = tl.rsqrt(tl.sum(squares, 1) / K + eps)
        acc = acc * inverse[None, :]
        if IS_GATED:
            up_acc = up_acc * inverse[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    if IS_GATED:
        if HAS_BIAS:
            up_acc += tl.load(bias + N + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
        acc = acc * tl.sigmoid(acc) * up_acc
    if HAS_RESIDUAL:
        acc += stream.to(tl.float32)
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=is_inside)


def launch_matrix(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    tiles: LinearTiles,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    is_gated: bool = False,
    use_pdl: bool = False,
) -> None:
    """As `launch_vector`, for 1 to 16 rows."""
    (num_rows, depth), columns = x.shape, out.shape[1]
    assert num_rows <= MAX_FEW_ROWS, num_rows
    line = _LINE_BYTES // weight.element_size()
    rows = tiles.block_n * (2 if is_gated else 1)
    norm_bytes = 0 if norm_weight is None else norm_weight.element_size()
    num_lines = min(triton.next_power_of_2(triton.cdiv(depth, line)), _PREFETCH_BYTES // _LINE_BYTES // rows)
    jit_mark(
        f"matrix_linear[{x.dtype},{columns},{depth},{tiles},{norm_weight is not None},{bias is not None},"
        f"{residual is not None},{is_gated},{use_pdl}]"
    )
    _matrix_kernel[(triton.cdiv(columns, tiles.block_n),)](
        x, x if norm_weight is None else norm_weight, weight, x if bias is None else bias,
        x if residual is None else residual, out, eps, num_rows,
        N=columns, K=depth, ROWS=MAX_FEW_ROWS, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
        HAS_NORM=norm_weight is not None,
        # float16 could overflow before the scale of the norm is known.
        NORMS_FIRST=x.dtype == torch.float16,
        # A scale of under 4 bytes a thread is no asynchronous copy: its latency is hidden by hand.
        SCALES_AHEAD=tiles.block_k * norm_bytes < 4 * 32 * tiles.num_warps,
        HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, IS_GATED=is_gated, USE_PDL=use_pdl,
        NUM_LINES=num_lines, LINE=line, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        **launch_options(use_pdl),
    )  # fmt: skip
