"""QK norm and rotary embedding of one head's vectors, for kernels that hold a head as two halves."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["norm_and_rotate"]


@triton.jit
def norm_and_rotate(low, high, cos, sin, weight, eps, HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr):
    """Rotate [M, HEAD_DIM / 2] float32 halves by [HEAD_DIM / 2] cosines and sines, after an optional RMS norm.

    weight: pointer to the norm's [HEAD_DIM] weight; not read without HAS_NORM. Returns both halves.
    """
    if HAS_NORM:
        half = tl.arange(0, HEAD_DIM // 2)
        inverse = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / HEAD_DIM + eps)
        low = low * inverse[:, None] * tl.load(weight + half).to(tl.float32)[None, :]
        high = high * inverse[:, None] * tl.load(weight + HEAD_DIM // 2 + half).to(tl.float32)[None, :]
    return low * cos[None, :] - high * sin[None, :], high * cos[None, :] + low * sin[None, :]
