"""Checks on what the caller passes: rank, shape, dtype and device against the slot, before any copy.

A copy into a static buffer would broadcast or convert silently; these checks make that an error that
names the argument. Baked values (arguments that are no tensors) must equal those at capture.
"""

from __future__ import annotations

from typing import Any

import torch

from ostinato.errors import InputSpecError
from ostinato.runtime.buffers.slots import Slot

__all__ = ["check_baked", "check_input"]


def check_input(name: str, slot: Slot, value: Any, device: torch.device) -> int | None:
    """Check ``value`` against ``slot``; its live rows without ``extra``, or None for a fixed shape.

    Raises:
        InputSpecError: ``value`` is no tensor, or differs in rank, shape, dtype or device type.
    """
    if not isinstance(value, torch.Tensor):
        raise InputSpecError(
            f"argument {name!r} must be a tensor",
            fix="pass a tensor, as was declared or as the example had; for another kind of call wrap it anew",
            expected=slot.describe(),
            got=type(value).__name__,
        )
    expected = slot.shape
    is_shape_ok = value.dim() == len(expected) and all(
        e is None or e == g for e, g in zip(expected, value.shape, strict=True)
    )
    if not is_shape_ok or value.dtype != slot.dtype or value.device.type != device.type:
        raise InputSpecError(
            f"argument {name!r} differs from what was declared",
            fix="pass the declared shape, dtype and device; nothing is broadcast or converted silently",
            expected=f"{slot.describe()} on {device}",
            got=f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}",
        )
    return None if slot.axis is None else value.shape[0] - slot.extra


def check_baked(name: str, captured: Any, value: Any) -> None:
    """Raise `InputSpecError` if a value that a capture has frozen is now another one."""
    if captured is not value and (type(captured) is not type(value) or captured != value):
        raise InputSpecError(
            f"argument {name!r} is frozen in the graph and cannot change",
            fix="pass it as a tensor, or wrap a callable of its own for each value",
            expected=repr(captured),
            got=repr(value),
        )
