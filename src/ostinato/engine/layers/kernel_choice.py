"""Whether an op takes its Triton kernel or its torch form."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["takes_triton"]


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def takes_triton(x: Tensor) -> bool:
    """True on CUDA where triton is installed; a compiler gets the torch form, which it can fuse with its neighbours."""
    return not torch.compiler.is_compiling() and x.is_cuda and _has_triton()
