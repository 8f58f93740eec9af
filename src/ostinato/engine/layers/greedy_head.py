"""The last op of a greedy step: from logits to token ids that stay on the device, inside the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.engine.layers.kernel_choice import takes_triton
from ostinato.engine.sampling import choose_greedy

__all__ = ["GreedyHead"]


class GreedyHead:
    """Chooses the most likely token of each row; owns the scratch memory that this needs on CUDA.

    Args:
        max_rows: most rows of one call.
        device: where it runs.
    """

    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        self._scratch: tuple[Tensor, Tensor, Tensor] | None = None
        if device.type == "cuda" and takes_triton(torch.empty(0, device=device)):
            from ostinato.engine.layers.triton.argmax import scratch

            self._scratch = scratch(max_rows, device)  # never grows: captured graphs hold its address

    def __call__(self, logits: Tensor, out: Tensor) -> None:
        """See `choose_greedy`: logits [num_rows, vocab] -> out [num_rows] int64, -1 for a row that is not finite."""
        if self._scratch is not None and takes_triton(logits):
            from ostinato.engine.layers.triton.argmax import launch_argmax

            launch_argmax(logits, out, *self._scratch)
        else:
            choose_greedy(logits, out)
