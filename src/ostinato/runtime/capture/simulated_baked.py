"""What a simulated recording has frozen of each op: numbers, strings and layouts.

Tensors stand with their layout, since an offset that the host computed shows nowhere else. Held by recordings,
compared by `qualify` between two captures of one key. Addresses are left out: intermediates lie anew each time.
"""

from __future__ import annotations

from typing import Any

import torch

from ostinato.runtime.capture.backend import BakedCall
from ostinato.runtime.nest import leaves, tensors
from ostinato.runtime.ops import op_name

__all__ = ["baked_call", "baked_constant"]

_MOST_ELEMENTS = 4096  # of a host table; larger ones are known by their shape alone


def baked_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BakedCall:
    """One op, its arguments named by its schema."""
    names = [argument.name for argument in func._schema.arguments]
    named = {names[index] if index < len(names) else str(index): value for index, value in enumerate(args)} | kwargs
    values: list[tuple[str, Any]] = []
    for name, value in named.items():
        for path, leaf in leaves(value, name):
            if isinstance(leaf, torch.Tensor):
                layout = (tuple(leaf.shape), leaf.stride(), leaf.storage_offset())
                values.append((f"layout of {path}", layout))
            elif not isinstance(leaf, torch.Generator):
                values.append((path, leaf))
    return BakedCall(op_name(func), tuple(values))


def baked_constant(name: str, result: Any) -> BakedCall:
    """Host data that became a tensor in the recording."""
    return BakedCall(name, tuple(("data", _contents(tensor)) for tensor in tensors(result)))


def _contents(tensor: torch.Tensor) -> Any:
    return tensor.tolist() if tensor.numel() <= _MOST_ELEMENTS else tuple(tensor.shape)
