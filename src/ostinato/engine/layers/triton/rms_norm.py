"""RMS norm with an optional residual addition, of parts too, one program a row. Called by `RMSNorm` on CUDA."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher
from ostinato.engine.kernels.programmatic_launch import (
    can_launch_early,
    gdc_launch_dependents,
    gdc_wait,
    launch_options,
)

__all__ = ["launch_rms_norm"]


@triton.jit(do_not_specialize=("num_rows",))
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    eps,
    num_rows,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    values = tl.load(x + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        values += tl.load(x + (part * num_rows + row) * SIZE + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        pointers = residual + row * SIZE + columns
        values += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
        # What later layers read is rounded to the stream's dtype: norm the same values.
        rounded = values.to(residual.dtype.element_ty)
        tl.store(pointers, rounded, mask=inside)
        values = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 0) / SIZE + eps)
    tl.store(out + row * SIZE + columns, (values * inverse * scale).to(out.dtype.element_ty), mask=inside)


@functools.cache
def _launcher(
    dtype: torch.dtype, out_dtype: torch.dtype, size: int, has_residual: bool, num_parts: int, is_early: bool
) -> Launcher:
    block = triton.next_power_of_2(size)
    return Launcher(
        _rms_norm_kernel, f"rms_norm[{dtype},{out_dtype},{size},{has_residual},{num_parts},{is_early}]",
        SIZE=size, BLOCK=block, HAS_RESIDUAL=has_residual, NUM_PARTS=num_parts, USE_PDL=is_early,
        num_warps=min(max(block // 512, 1), 8), **launch_options(is_early),
    )  # fmt: skip


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(
    dtype: torch.dtype, out_dtype: torch.dtype, given: torch.Size, has_residual: bool, device: torch.device, eps: float
) -> Launch:
    """Of ``given``, the shape of ``x``."""
    *_, size = given
    num_parts = given[0] if has_residual and len(given) == 3 else 1
    is_early = num_parts > 1 and can_launch_early(device)
    num_rows = given.numel() // (num_parts * size)
    return _launcher(dtype, out_dtype, size, has_residual, num_parts, is_early).at((num_rows, 1, 1), eps, num_rows)


def launch_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Norm of ``x``, or of ``x + residual``, which is also written into ``residual``.

    Args:
        x: [..., size]; copied if it is not contiguous. With a residual [num_rows, size], which is given up: the result
            lies in its memory; or parts that add up to it, [num_parts, num_rows, size] in float32: then it starts early
            (`programmatic_launch`), as what made them did.
        residual: [num_rows, size] and contiguous, or None.
        weight: [size].
    """
    x = x.contiguous()
    if residual is None:
        out = torch.empty_like(x)
    else:
        out = x if x.ndim == 2 and x.dtype == residual.dtype else torch.empty_like(residual)
    _launch(x.dtype, out.dtype, x.shape, residual is not None, x.device, eps)(x, residual, weight, out)
    return out
