"""A linear layer of one row, with what surrounds it: RMS norm before; bias, gating or residual after.

No tensor cores: each program multiplies a few rows of the weight with the input and reduces in
registers, so weights stream through at the memory's pace. The norm's scale is a factor of the whole product,
hence one pass over the input serves both. Sums are float32 and in a fixed order. Called by `FusedLinears`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ostinato.engine.kernels.launcher import Launch, Launcher
from ostinato.engine.kernels.programmatic_launch import gdc_launch_dependents, gdc_wait, launch_options
from ostinato.engine.layers.linear_tiles import LinearTiles

__all__ = ["vector_launch"]


@triton.jit
def _load(pointers, is_inside, depth, K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr):
    """A tile of the weight; each element is read once in a step, so it should not push others out of L1."""
    if EVEN_N and EVEN_K:
        return tl.load(pointers, eviction_policy="evict_first")
    elif EVEN_K:
        return tl.load(pointers, mask=is_inside[:, None], other=0.0, eviction_policy="evict_first")
    else:
        mask = is_inside[:, None] & (depth < K)[None, :]
        return tl.load(pointers, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _load_line(pointers, depth, K: tl.constexpr, EVEN_K: tl.constexpr):
    """[1, BLOCK_K] in float32, in the layout of a weight's tile."""
    if EVEN_K:
        return tl.load(pointers + depth[None, :]).to(tl.float32)
    else:
        return tl.load(pointers + depth[None, :], mask=(depth < K)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _vector_kernel(
    x,
    norm_weight,
    weight,
    bias,
    residual,
    out,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    EVEN_N: tl.constexpr = N % BLOCK_N == 0
    EVEN_K: tl.constexpr = K % BLOCK_K == 0
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_inside = column < N
    depth = tl.arange(0, BLOCK_K)
    pointers = weight + column.to(tl.int64)[:, None] * K + depth[None, :]
    up_pointers = pointers + N * K  # the up projection's rows follow the gate's

    # Weights and the norm's scale never change: they are on their way before the input is complete.
    tile = _load(pointers, is_inside, depth, K, EVEN_N, EVEN_K)
    if IS_GATED:
        up_tile = _load(up_pointers, is_inside, depth, K, EVEN_N, EVEN_K)
    if HAS_NORM:
        scale = _load_line(norm_weight, depth, K, EVEN_K)
    if HAS_BIAS:
        addend = tl.load(bias + column, mask=is_inside, other=0.0)
        if IS_GATED:
            up_addend = tl.load(bias + N + column, mask=is_inside, other=0.0)
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()

    if HAS_RESIDUAL:
        stream = tl.load(residual + column, mask=is_inside, other=0.0)
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    if IS_GATED:
        up_acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    if HAS_NORM:
        squares = tl.zeros([1, BLOCK_K], tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        # The next tile is asked for before this one is used.
        if start + BLOCK_K < K:
            next_tile = _load(pointers + (start + BLOCK_K), is_inside, depth, K - start - BLOCK_K, EVEN_N, EVEN_K)
            if IS_GATED:
                next_up = _load(up_pointers + (start + BLOCK_K), is_inside, depth, K - start - BLOCK_K, EVEN_N, EVEN_K)
            if HAS_NORM:
                next_scale = _load_line(norm_weight + (start + BLOCK_K), depth, K - start - BLOCK_K, EVEN_K)
        values = _load_line(x + start, depth, K - start, EVEN_K)
        if HAS_NORM:
            squares += values * values
            values = values * scale
        acc += tile.to(tl.float32) * values
        if IS_GATED:
            up_acc += up_tile.to(tl.float32) * values
        if start + BLOCK_K < K:
            tile = next_tile
            if IS_GATED:
                up_tile = next_up
            if HAS_NORM:
                scale = next_scale

    total = tl.sum(acc, 1)
    if HAS_NORM:
        inverse = tl.rsqrt(tl.sum(squares) / K + eps)
        total = total * inverse
    if HAS_BIAS:
        total += addend.to(tl.float32)
    if IS_GATED:
        up = tl.sum(up_acc, 1)
        if HAS_NORM:
            up = up * inverse
        if HAS_BIAS:
            up += up_addend.to(tl.float32)
        total = total * tl.sigmoid(total) * up
    if HAS_RESIDUAL:
        total += stream.to(tl.float32)
    tl.store(out + column, total.to(out.dtype.element_ty), mask=is_inside)


@functools.cache
def _launcher(
    dtype: torch.dtype,
    columns: int,
    depth: int,
    tiles: LinearTiles,
    has_norm: bool,
    has_bias: bool,
    has_residual: bool,
    is_gated: bool,
    use_pdl: bool,
) -> Launcher:
    return Launcher(
        _vector_kernel,
        f"vector_linear[{dtype},{columns},{depth},{tiles},{has_norm},{has_bias},{has_residual},{is_gated},{use_pdl}]",
        N=columns, K=depth, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, HAS_NORM=has_norm, HAS_BIAS=has_bias,
        HAS_RESIDUAL=has_residual, IS_GATED=is_gated, USE_PDL=use_pdl, num_warps=tiles.num_warps,
        **launch_options(use_pdl),
    )  # fmt: skip


def vector_launch(
    dtype: torch.dtype,
    columns: int,
    depth: int,
    tiles: LinearTiles,
    *,
    eps: float | None = None,
    has_bias: bool = False,
    has_residual: bool = False,
    is_gated: bool = False,
    use_pdl: bool = False,
) -> Launch:
    """The launch of ``out = [residual +] act([norm](x) @ weight.T [+ bias])``.

    It is given (x, norm_weight, weight, bias, residual, out): [1, depth], [depth], [columns, depth] or, gated,
    [2 * columns, depth] with gates first, as many as rows of weight, [1, columns] and the same, which may be residual.
    All are contiguous and of ``dtype``, None where there is none.

    Args:
        tiles: ``block_n`` rows of the weight (of each half, if gated) a program.
        eps: of an RMS norm of the input; None: there is none.
        is_gated: SiLU of the first half of the columns times the second.
        use_pdl: launch early; see `programmatic_launch`.
    """
    launcher = _launcher(dtype, columns, depth, tiles, eps is not None, has_bias, has_residual, is_gated, use_pdl)
    return launcher.at((-(-columns // tiles.block_n), 1, 1), 0.0 if eps is None else eps)
