"""Rotary position embedding: its frequencies, the table of cosines and sines, and rotating in plain torch.

The table is made once, for every position that the engine admits; a step gathers its rows once for all
layers. Halves are rotated against each other, as Hugging Face checkpoints lay heads out. Source: Su et al.,
"RoFormer", 2021; scaling as in the Llama 3.1 release ("llama3") and by position interpolation ("linear").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ostinato.engine.layers.gather import gather_rows

__all__ = ["RopeConfig", "RotaryTable", "rotate", "rotary_frequencies"]


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Frequencies of a rotary embedding."""

    kind: str = "default"
    """"default", "linear" or "llama3"."""
    theta: float = 10000.0
    """Base of the geometric series of wavelengths."""
    factor: float = 1.0
    """By how much long wavelengths are stretched (all of them for "linear")."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original_max_len / this are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original_max_len / this stay as they are."""
    original_max_len: int = 8192
    """llama3: tokens of context the model was first trained for."""


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim / 2] float32: radians a token of each pair of elements."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        turns = rope.original_max_len * frequencies / (2 * math.pi)  # in the original context
        keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        return frequencies * keep + frequencies / rope.factor * (1.0 - keep)
    return frequencies


class RotaryTable(nn.Module):
    """Cosines and sines of ``max_len`` positions.

    Args:
        rope: the frequencies.
        head_dim: elements a head.
        max_len: positions, in tokens; indexing past them is an error of the caller.
    """

    table: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int, max_len: int) -> None:
        super().__init__()
        with torch.device("cpu"):  # the same bits on every device
            angles = torch.outer(torch.arange(max_len, dtype=torch.float32), rotary_frequencies(rope, head_dim))
            table = torch.cat((angles.cos(), angles.sin()), dim=-1)
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """[num_tokens] int64 -> [num_tokens, head_dim] float32: cosines, then sines."""
        return gather_rows(self.table, positions)


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotate heads: [num_tokens, num_heads, head_dim] by rows from `RotaryTable`; computed in float32."""
    cos, sin = rotary[:, None].chunk(2, dim=-1)
    low, high = x.to(torch.float32).chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
