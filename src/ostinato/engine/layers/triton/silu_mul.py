"""SiLU of the gate times the up projection. Called by `silu_mul` on CUDA."""
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
def _silu_mul_kernel(gate_up, out, SIZE: tl.constexpr, OUT_STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    # In place ``out`` is the gate's half: one program alone reads and writes an element of it, in this order.
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * OUT_STRIDE + columns, value.to(out.dtype.element_ty), mask=inside)


@functools.cache
def _launcher(dtype: torch.dtype, size: int, out_stride: int) -> Launcher:
    mark = f"silu_mul[{dtype},{size},{out_stride}]"
    return Launcher(_silu_mul_kernel, mark, SIZE=size, OUT_STRIDE=out_stride, BLOCK=_BLOCK, num_warps=4)


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(dtype: torch.dtype, num_tokens: int, size: int, out_stride: int) -> Launch:
    return _launcher(dtype, size, out_stride).at((num_tokens, -(-size // _BLOCK), 1))


def launch_silu_mul(gate_up: Tensor, *, is_in_place: bool = False) -> Tensor:
    """[num_tokens, 2 * size], contiguous -> [num_tokens, size]; in place a view of the gate's half."""
    num_tokens, columns = gate_up.shape
    size = columns // 2
    out = gate_up.narrow(1, 0, size) if is_in_place else gate_up.new_empty((num_tokens, size))
    _launch(gate_up.dtype, num_tokens, size, columns if is_in_place else size)(gate_up, out)
    return out
