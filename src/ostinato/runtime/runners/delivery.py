"""`Delivery`: from a plan's padded outputs to what the caller gets.

Slices what has one row a token to the live size, and copies or lends: a lent output is the graph's own memory, holds
until the next step, and comes as a `ReplayView` that says so when it is used later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from ostinato.errors import ConfigError
from ostinato.runtime.nest import map_tensors, tensors
from ostinato.runtime.runners.layout import RowLayout
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.replay_view import Origin, ReplayView

__all__ = ["Delivery"]

logger = logging.getLogger("ostinato")


class Delivery:
    """Learns from warm-up which outputs are batch-major.

    Args:
        copies: whether the caller gets tensors of its own.
        arena: memory of the static inputs.
    """

    def __init__(self, *, copies: bool, arena: torch.Tensor) -> None:
        self._copies = copies
        self._arena = arena.untyped_storage().data_ptr()
        self._left: set[int] = set()
        self._layout = RowLayout()
        self._shapes: dict[int, dict[int, tuple[int, ...]]] = {}  # output -> rows -> shape
        self._told: set[int] = set()  # outputs that do not follow the batch

    def observe(self, outputs: Any, num_rows: int) -> None:
        """Take in the outputs of a run of ``num_rows`` rows."""
        for position, tensor in enumerate(tensors(outputs)):
            self._layout.observe(position, tensor, num_rows)
            self._shapes.setdefault(position, {})[num_rows] = tuple(tensor.shape)

    def check(self) -> None:
        """Raise `ConfigError` if an output grows with the batch otherwise than by one row a token: it cannot be cut.

        One that does not follow it at all may be right (a constant, a state) or made of padded rows too (a sum): that
        is told once, since no look at shapes can know.
        """
        for position, shapes in self._shapes.items():
            if len(set(shapes.values())) > 1 and not self._layout.is_batch_major(position):
                raise ConfigError(
                    f"output {position} follows the batch, but not with one row a token in dimension 0",
                    fix="return it with the batch first, or reshape it outside the wrapped callable",
                    shapes=shapes,
                )
            if not self._layout.is_batch_major(position) and position not in self._told:
                self._told.add(position)
                logger.warning(
                    "output %d, of shape %s, has no row a token and is handed out as a padded batch makes it; "
                    "qualify() finds out whether padding changes it",
                    position,
                    next(iter(shapes.values())),
                )

    def leave(self, kept: Iterable[torch.Tensor]) -> None:
        """Lend outputs in the memory of ``kept`` as they are: the callable keeps them, whatever is replayed."""
        self._left = {tensor.untyped_storage().data_ptr() for tensor in kept}

    def deliver(self, plan: CapturedPlan, num_live: int) -> Any:
        """The outputs of ``plan``, which has just been replayed with ``num_live`` real rows; for any caller."""
        outputs = self.cut(plan.outputs, num_live)
        if self._copies:
            return map_tensors(outputs, torch.clone)
        origin = Origin(plan.key, plan.generation, plan.generation.now)

        def lend(tensor: torch.Tensor) -> torch.Tensor:
            address = tensor.untyped_storage().data_ptr()
            if address == self._arena:  # the next step's inputs overwrite it, and may be copied from it
                return tensor.clone()
            return tensor if address in self._left else ReplayView.of(tensor, origin)

        return map_tensors(outputs, lend)

    def lend(self, plan: CapturedPlan, num_live: int) -> Any:
        """The same without the check of views; for a caller that reads before the next step."""
        return self.lend_eager(plan.outputs, num_live)

    def lend_eager(self, outputs: Any, num_live: int) -> Any:
        """The same of an eager run on the static buffers."""
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
