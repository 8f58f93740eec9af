"""Whether an op takes its Triton kernel or its torch form, and whether a layer takes the path of few rows."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ostinato.engine.layers.linear_tiles import MAX_FEW_ROWS

__all__ = ["takes_fused_linears", "takes_triton"]


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def takes_triton(x: Tensor) -> bool:
    """True on CUDA where triton is installed; a compiler gets the torch form, which it can fuse with its neighbours."""
    return not torch.compiler.is_compiling() and x.is_cuda and _has_triton()


def takes_fused_linears(x: Tensor) -> bool:
    """Whether [num_rows, ...] go through `FusedLinears`: few rows in half precision, where `takes_triton`.

    By the padded shape alone, so that eager, piecewise and full steps of one size run the same kernels.
    float32 keeps torch's products, whose precision the user sets.
    """
    return takes_triton(x) and 0 < x.shape[0] <= MAX_FEW_ROWS and x.dtype in (torch.bfloat16, torch.float16)
