"""A linear layer of 2 to 128 rows at the pace of reading its weight: bias, gating, or parts of the depth.

The weight's tile is the left operand of the tensor cores and the transposed input the right one, padded to a
power of two. Where the columns are too few to occupy a device, the depth is split: each part is written apart,
and `RMSNorm.add`, which comes next, sums them in order, so no sum depends on which program comes first.
Called by `FusedLinears`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ostinato.engine.kernels.launcher import Launch, Launcher
from ostinato.engine.kernels.programmatic_launch import gdc_launch_dependents, gdc_wait, launch_options
from ostinato.engine.layers.linear_tiles import MAX_ROWS, LinearTiles, row_bucket

__all__ = ["matrix_launch"]

# What a program asks of its rows of the weight before its input is complete, at most.
_PREFETCH_BYTES = 48 * 1024
_LINE_BYTES = 128
_MIN_ROWS = 16


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


@triton.jit(do_not_specialize=("num_rows", "num_turns"))
def _matrix_kernel(
    x,
    weight,
    bias,
    out,
    num_rows,
    num_turns,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
    USE_PDL: tl.constexpr,
    NUM_LINES: tl.constexpr,
    LINE: tl.constexpr,
):
    EVEN_N: tl.constexpr = N % BLOCK_N == 0
    split = tl.program_id(1)
    begin = split * num_turns * BLOCK_K
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < N
    row = tl.arange(0, ROWS)
    is_row = row < num_rows
    depth = tl.arange(0, BLOCK_K)
    if USE_PDL:
        # The weight never changes: it is on its way before the input is complete.
        start = tl.minimum(column, N - 1).to(tl.int64)[:, None] * K
        line = tl.minimum(begin + tl.arange(0, NUM_LINES) * LINE, K - 1)[None, :]
        _prefetch(weight + start + line)
        if IS_GATED:
            _prefetch(weight + N * K + start + line)
        gdc_launch_dependents()
        gdc_wait()

    pointers = weight + column.to(tl.int64)[:, None] * K + (begin + depth)[None, :]
    x_pointers = x + row[:, None] * K + (begin + depth)[None, :]
    acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
    if IS_GATED:
        up_acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
    for turn in range(num_turns):
        offset = turn * BLOCK_K
        is_deep = depth < K - begin - offset
        tile = _load(pointers + offset, is_column, is_deep, EVEN_N, EVEN_K)
        if IS_GATED:
            up_tile = _load(pointers + (N * K + offset), is_column, is_deep, EVEN_N, EVEN_K)
        values = tl.trans(_load(x_pointers + offset, is_row, is_deep, False, EVEN_K))
        acc = tl.dot(tile, values, acc)
        if IS_GATED:
            up_acc = tl.dot(up_tile, values, up_acc)

    if HAS_BIAS:
        share = tl.where(split == 0, 1.0, 0.0)  # once, whatever the number of parts
        acc += share * tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    if IS_GATED:
        if HAS_BIAS:
            up_acc += tl.load(bias + N + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
        acc = acc * tl.sigmoid(acc) * up_acc
    place = (split * num_rows + row)[None, :] * N + column[:, None]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=is_column[:, None] & is_row[None, :])


@functools.cache
def _launcher(
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    columns: int,
    depth: int,
    rows: int,
    tiles: LinearTiles,
    has_bias: bool,
    is_gated: bool,
    is_early: bool,
) -> Launcher:
    lines_a_row = max(1, _PREFETCH_BYTES // _LINE_BYTES // (tiles.block_n * (2 if is_gated else 1)))
    return Launcher(
        _matrix_kernel,
        f"matrix_linear[{dtype},{out_dtype},{columns},{depth},{rows},{tiles},{has_bias},{is_gated},{is_early}]",
        N=columns, K=depth, ROWS=rows, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
        EVEN_K=tiles.num_splits * _num_turns(depth, tiles) * tiles.block_k == depth,
        HAS_BIAS=has_bias, IS_GATED=is_gated, USE_PDL=is_early,
        NUM_LINES=1 << (lines_a_row.bit_length() - 1), LINE=_LINE_BYTES // dtype.itemsize,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **launch_options(is_early),
    )  # fmt: skip


def _num_turns(depth: int, tiles: LinearTiles) -> int:
    """Steps of ``block_k`` that one part of the depth takes."""
    turns: int = triton.cdiv(triton.cdiv(depth, tiles.block_k), tiles.num_splits)
    return turns


def matrix_launch(
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    num_rows: int,
    columns: int,
    depth: int,
    tiles: LinearTiles,
    *,
    has_bias: bool = False,
    is_gated: bool = False,
    use_pdl: bool = False,
) -> Launch:
    """The launch of ``out = act(x @ weight.T [+ bias])``, or of parts that add up to it.

    It is given (x, weight, bias, out): [num_rows, depth], [columns, depth] or, gated, [2 * columns, depth] with gates
    first, as many as rows of weight or None, [num_rows, columns] or, split, [tiles.num_splits, num_rows, columns]. All
    are contiguous, and but for out of ``dtype``.

    Args:
        num_rows: 1 to 128.
        tiles: ``block_n`` rows of the weight (of each half, if gated) a program.
        is_gated: SiLU of the first half of the columns times the second; not with splits.
        use_pdl: launch early, if the tiles say so too; see `programmatic_launch`.
    """
    splits = tiles.num_splits
    assert num_rows <= MAX_ROWS, num_rows
    assert splits == 1 or not is_gated, "a product of sums is no sum"
    rows, is_early = max(_MIN_ROWS, row_bucket(num_rows)), use_pdl and tiles.is_early
    launcher = _launcher(dtype, out_dtype, columns, depth, rows, tiles, has_bias, is_gated, is_early)
    return launcher.at((-(-columns // tiles.block_n), splits, 1), num_rows, _num_turns(depth, tiles))
