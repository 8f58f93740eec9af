"""Attention as Triton kernels: one varlen kernel for any batch, split-context kernels for uniform decode.

Imported only through the backend registry, since it needs triton.
"""

from ostinato.engine.attention.triton.backend import TritonAttention

__all__ = ["TritonAttention"]
