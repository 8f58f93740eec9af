"""`RowLayout`: which handed-over tensors have one row per token.

Only such tensors are sliced to the live size and cleared past it; a state tensor that happens to have as
many rows as the bucket must be left alone. One size cannot tell, so every warm-up run of every key is a
witness, and a tensor counts as batch-major only while its first dimension has followed the bucket each time.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

__all__ = ["RowLayout"]


class RowLayout:
    """Witness of first dimensions, by name of the hand-over."""

    def __init__(self) -> None:
        self._is_batch_major: dict[Hashable, bool] = {}

    def observe(self, name: Hashable, tensor: torch.Tensor, num_rows: int) -> None:
        """Note the first dimension of ``tensor`` in a run of ``num_rows`` rows."""
        follows = tensor.dim() > 0 and tensor.shape[0] == num_rows
        self._is_batch_major[name] = self._is_batch_major.get(name, True) and follows

    def is_batch_major(self, name: Hashable) -> bool:
        """Whether every run observed so far had one row per token."""
        return self._is_batch_major.get(name, False)
