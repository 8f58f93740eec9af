"""`Delivery`: from a plan's padded outputs to what the caller gets.

Slices what has one row a token to the live size, and copies or lends: a lent output is the graph's own
memory and holds until the next step.
"""

from __future__ import annotations

from typing import Any

import torch

from ostinato.errors import ConfigError
from ostinato.runtime.nest import map_tensors, tensors
from ostinato.runtime.runners.layout import RowLayout

__all__ = ["Delivery"]


class Delivery:
    """Learns from warm-up which outputs are batch-major.

    Args:
        copies: whether the caller gets tensors of its own.
    """

    def __init__(self, *, copies: bool) -> None:
        self._copies = copies
        self._layout = RowLayout()
        self._shapes: dict[int, dict[int, tuple[int, ...]]] = {}  # output -> rows -> shape

    def observe(self, outputs: Any, num_rows: int) -> None:
        """Take in the outputs of a run of ``num_rows`` rows."""
        for position, tensor in enumerate(tensors(outputs)):
            self._layout.observe(position, tensor, num_rows)
            self._shapes.setdefault(position, {})[num_rows] = tuple(tensor.shape)

    def check(self) -> None:
        """Raise `ConfigError` if an output grows with the batch otherwise than by one row a token: it cannot be cut."""
        for position, shapes in self._shapes.items():
            if len(set(shapes.values())) > 1 and not self._layout.is_batch_major(position):
                raise ConfigError(
                    f"output {position} follows the batch, but not with one row a token in dimension 0",
                    fix="return it with the batch first, or reshape it outside the wrapped callable",
                    shapes=shapes,
                )

    def deliver(self, outputs: Any, num_live: int) -> Any:
        """The outputs of a replay that had ``num_live`` real rows."""
        outputs = self.cut(outputs, num_live)
        return map_tensors(outputs, torch.clone) if self._copies else outputs

    def cut(self, outputs: Any, num_live: int) -> Any:
        """Views of the real rows, whatever the policy on copies."""
        position = -1

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal position
            position += 1
            return tensor[:num_live] if self._layout.is_batch_major(position) else tensor

        return map_tensors(outputs, cut)
