"""Memory that split decode needs besides its output: partial results and the counters of arrivals.

Partials are allocated for each launch (inside a capture they live in the graph's pool). Counters persist,
since each launch leaves them at zero for the next; their number is bounded by the device, so they never
grow. One workspace belongs to one backend, and launches that share it must be on one stream.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ostinato.engine.attention.triton.configs import max_split_units
from ostinato.runtime.breaks import jit_mark

__all__ = ["SplitWorkspace"]


_serials = itertools.count()


class SplitWorkspace:
    """Hands out the buffers of split decode."""

    def __init__(self) -> None:
        self._kept: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._serial = next(_serials)

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept between launches."""
        return sum(each.nbytes for kept in self._kept.values() for each in kept)

    def reserve(self, num_parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Parts and counters of one launch.

        Args:
            num_parts: `DecodePlan.num_parts`.

        Returns:
            Parts, [>= num_parts] float32; counters, [>= units] int32, zero before and after a launch. Neither is
            touched where nothing is split.

        Raises:
            JitInCaptureError: the first launch of this workspace on ``device`` falls into a capture.
        """
        kept = self._kept.get(device)
        if kept is None:
            jit_mark(f"split counters of workspace {self._serial} on {device}")
            counters = torch.zeros(max_split_units(device), dtype=torch.int32, device=device)
            kept = self._kept[device] = (torch.zeros(1, dtype=torch.float32, device=device), counters)
        no_parts, counters = kept
        return no_parts.new_empty(num_parts) if num_parts else no_parts, counters
