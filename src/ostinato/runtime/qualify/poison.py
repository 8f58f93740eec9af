"""What stands where no live row is: the values that a graph must never let through to a live one.

Only floating memory is poisoned. An integer may be an index, so its padded rows keep the safe values of the slot's
tail policy: garbage there would fault and not merely leak. Used by the driver and by whoever makes cases.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import torch

from ostinato.runtime.buffers import Sizes, StaticBuffers
from ostinato.runtime.runners import BreakStep, CapturedPlan

__all__ = ["Poison", "poison_plan", "poison_tails"]


class Poison(StrEnum):
    """What padded rows and unused memory hold."""

    NONE = "none"
    """What serving leaves there: the tail policy of each slot."""
    NAN = "nan"
    LARGE = "large"
    """Finite garbage near the end of the dtype's range, which no mask by multiplication removes."""

    def value_for(self, dtype: torch.dtype) -> float:
        """The number to fill with."""
        if self is Poison.NAN:
            return float("nan")
        return 6e4 if dtype is torch.float16 else 1e30


def poison_tails(buffers: StaticBuffers, live: Sizes, padded: Sizes, poison: Poison) -> None:
    """Overwrite the padded rows of floating input slots."""
    if poison is Poison.NONE:
        return
    for name, view in buffers.views(padded).items():
        start = buffers.slots[name].rows(live)
        if start is not None and view.dtype.is_floating_point:
            view[start:].fill_(poison.value_for(view.dtype))


def poison_plan(plan: CapturedPlan, outputs: Iterable[torch.Tensor], poison: Poison) -> None:
    """Overwrite what a replay must write anew: bridges, and those ``outputs`` that are the graph's own."""
    kind = Poison.NAN if poison is Poison.NONE else poison
    bridges = [bridge for entry in plan.entries if isinstance(entry, BreakStep) for bridge in entry.bridges]
    with torch.inference_mode():  # what was captured in inference mode can be written in it alone
        for tensor in (*bridges, *outputs):
            if tensor.dtype.is_floating_point:
                tensor.fill_(kind.value_for(tensor.dtype))
