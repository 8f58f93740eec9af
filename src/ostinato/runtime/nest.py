"""Tensors nested in tuples, lists and mappings: walk them, replace them, compare their structure.

What callables take and return, and what ops do. Values that are no tensors are leaves too. Our own few
lines rather than torch's private pytree module; sets and custom classes are opaque leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

__all__ = ["leaves", "map_leaves", "map_tensors", "skeleton", "tensors"]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """``(path, leaf)`` in order; paths read like Python: ``[0]``, ``['mask']``."""
    if isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    else:
        yield path, value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in ``value``, in order. Apart from `leaves`, since a capture asks it of every op: paths cost most."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with each leaf replaced by ``change(leaf)``; containers are rebuilt with their own type."""
    if isinstance(value, (tuple, list)):
        items = [map_leaves(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        changed = {key: map_leaves(item, change) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(**changed)
    return change(value)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with each tensor replaced; other leaves stay."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def skeleton(value: Any) -> Any:
    """The structure without the tensors: equal for two values that nest alike."""
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, tuple(skeleton(item) for item in value))
    if isinstance(value, Mapping):
        return (type(value).__name__, tuple((key, skeleton(item)) for key, item in value.items()))
    return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
