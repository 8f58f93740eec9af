"""The CUDA driver library, through ctypes: it is always there, and a binding package is not."""

from __future__ import annotations

import ctypes
import functools

__all__ = ["driver"]


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver library."""
    return ctypes.CDLL("libcuda.so.1")
