"""Memory that split decode needs besides its output: partial results and the counters of arrivals.

Partials are allocated for each launch (inside a capture they live in the graph's pool). Counters persist,
since each launch leaves them at zero for the next; their number is bounded by the device, so they never
grow. One workspace belongs to one backend, and launches that share it must be on one stream.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ostinato.engine.attention.triton.configs import DecodePlan, max_split_units
from ostinato.runtime.breaks import jit_mark

__all__ = ["SplitParts", "SplitWorkspace"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitParts:
    """The buffers of one launch; a unit is one request and KV head."""

    peaks: Tensor
    """[units * splits * rows] float32."""
    totals: Tensor
    """Like ``peaks``."""
    accs: Tensor
    """[units * splits * rows * head_dim] float32."""
    counters: Tensor
    """[>= units] int32, zero before and after a launch (not touched where nothing is split)."""


_serials = itertools.count()


class SplitWorkspace:
    """Hands out the buffers of split decode."""

    def __init__(self) -> None:
        self._counters: dict[torch.device, Tensor] = {}
        self._serial = next(_serials)

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept between launches."""
        return sum(counters.nbytes for counters in self._counters.values())

    def reserve(self, plan: DecodePlan, device: torch.device) -> SplitParts:
        """Buffers for one launch.

        Raises:
            JitInCaptureError: the first launch of this workspace on ``device`` falls into a capture.
        """
        counters = self._counters.get(device)
        if counters is None:
            jit_mark(f"split counters of workspace {self._serial} on {device}")
            counters = torch.zeros(max_split_units(device), dtype=torch.int32, device=device)
            self._counters[device] = counters
        rows = plan.num_units * plan.num_splits * plan.rows if plan.num_splits > 1 else 0
        buffer = torch.empty(max(rows, 1) * (2 + plan.head_dim), dtype=torch.float32, device=device)
        return SplitParts(peaks=buffer, totals=buffer[rows:], accs=buffer[2 * rows :], counters=counters)
