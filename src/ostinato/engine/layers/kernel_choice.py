"""Whether an op takes its Triton kernel or its torch form, and which steps have linear layers of our own."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ostinato.engine.layers.linear_tiles import MAX_ROWS

__all__ = ["takes_linear_kernels", "takes_one_row_path", "takes_triton"]


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def takes_triton(x: Tensor) -> bool:
    """True on CUDA where triton is installed; a compiler gets the torch form, which it can fuse with its neighbours."""
    return not is_compiling() and x.is_cuda and _has_triton()


def takes_linear_kernels(x: Tensor) -> bool:
    """Whether the linear layers of [num_rows, ...] may be our kernels: up to 128 rows in half precision, on triton.

    By the padded shape alone, so that eager, piecewise and full steps of one size run the same kernels.
    float32 keeps torch's products, whose precision the user sets.
    """
    return takes_triton(x) and 0 < x.shape[0] <= MAX_ROWS and x.dtype in (torch.bfloat16, torch.float16)


def takes_one_row_path(x: Tensor) -> bool:
    """Whether a step of [num_rows, ...] fuses norm, gating and residual into its linear layers: one row of those."""
    return x.shape[0] == 1 and takes_linear_kernels(x)
