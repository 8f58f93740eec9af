"""Probability mass in fixed point: what tokens weigh against each other, as whole numbers.

Sums of integers are exact in any order, so a row gives the same token in any batch, block or device; only exp itself
may differ between devices, by its last bit. Used by filters and draw, and by the CUDA kernel.
"""

from __future__ import annotations

from typing import Final

import torch

__all__ = ["mass_bits", "masses_of"]

_MOST_BITS: Final = 44  # what a row of 2**18 tokens loses by rounding is below 2**-26 of its mass


def mass_bits(vocab_size: int) -> int:
    """The likeliest token weighs 2**bits, so that a row of ``vocab_size`` such tokens stays below 2**62."""
    return min(_MOST_BITS, 62 - (vocab_size - 1).bit_length())


def masses_of(scores: torch.Tensor, bits: int) -> torch.Tensor:
    """exp(scores) in units of 2**-bits, rounded down: int64. ``scores`` is float32, at most 0."""
    return (scores.exp() * 2.0**bits).to(torch.int64)
