"""SiLU of the gate times the up projection. Called by `GatedMLP` on CUDA."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher

__all__ = ["launch_silu_mul"]

_BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * SIZE + columns, value.to(out.dtype.element_ty), mask=inside)


@functools.cache
def _launcher(dtype: torch.dtype, size: int) -> Launcher:
    return Launcher(_silu_mul_kernel, f"silu_mul[{dtype},{size}]", SIZE=size, BLOCK=_BLOCK, num_warps=4)


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(dtype: torch.dtype, num_tokens: int, size: int) -> Launch:
    return _launcher(dtype, size).at((num_tokens, -(-size // _BLOCK), 1))


def launch_silu_mul(gate_up: Tensor) -> Tensor:
    """[num_tokens, 2 * size], contiguous -> [num_tokens, size]."""
    num_tokens, columns = gate_up.shape
    out = gate_up.new_empty((num_tokens, columns // 2))
    _launch(gate_up.dtype, num_tokens, columns // 2)(gate_up, out)
    return out
