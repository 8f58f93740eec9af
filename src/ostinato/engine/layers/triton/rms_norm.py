"""RMS norm with an optional residual addition, one program a row. Called by `RMSNorm` on CUDA."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.runtime.breaks import jit_mark

__all__ = ["launch_rms_norm"]


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    values = tl.load(x + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        pointers = residual + row * SIZE + columns
        values += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
        # What later layers read is rounded to the stream's dtype: norm the same values.
        rounded = values.to(residual.dtype.element_ty)
        tl.store(pointers, rounded, mask=inside)
        values = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 0) / SIZE + eps)
    tl.store(out + row * SIZE + columns, (values * inverse * scale).to(out.dtype.element_ty), mask=inside)


def launch_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Norm of ``x``, or of ``x + residual``, which is also written into ``residual``.

    Args:
        x: [..., size]; copied if it is not contiguous.
        residual: like ``x`` and contiguous, or None.
        weight: [size].
    """
    size = x.shape[-1]
    x = x.contiguous()
    out = torch.empty_like(x)
    block = triton.next_power_of_2(size)
    jit_mark(f"rms_norm[{x.dtype},{size},{residual is not None}]")
    _rms_norm_kernel[(x.numel() // size,)](
        x, x if residual is None else residual, weight, out, eps,
        SIZE=size, BLOCK=block, HAS_RESIDUAL=residual is not None, num_warps=min(max(block // 512, 1), 8),
    )  # fmt: skip
    return out
