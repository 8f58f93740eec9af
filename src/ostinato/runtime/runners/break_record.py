"""What warm-up saw of a key's breaks, held against its capture.

A replay never runs the code between breaks again, so a number or string that a break is given is frozen. If
it differs between warm-up and capture it depends on something the key does not carry: that is an error that
names the argument (PITFALLS: baked host values). A break that is missing at capture is reported (FEATURES D6).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ostinato.errors import FrozenValueError
from ostinato.runtime.breaks import BreakPoint
from ostinato.runtime.nest import leaves

__all__ = ["BreakRecord"]

_PLAIN = (int, float, bool, str, type(None))


class BreakRecord:
    """The breaks of one run, in order, with their plain arguments."""

    def __init__(self) -> None:
        self._calls: list[tuple[BreakPoint, dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one call."""
        self._calls.append((point, _plain_arguments(point, args, kwargs)))

    def check(self, index: int, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare call number ``index`` of another run with this one.

        Raises:
            FrozenValueError: the same break got another number or string.
        """
        if index >= len(self._calls) or self._calls[index][0] is not point:
            return  # other breaks than before: `CapturedPlan.num_missing_breaks` tells
        for name, value in _plain_arguments(point, args, kwargs).items():
            seen = self._calls[index][1].get(name, value)
            if seen != value and not (seen != seen and value != value):  # NaN is equal to NaN here
                raise FrozenValueError(
                    f"argument {name!r} of break {point.name!r} changes from run to run and would be frozen",
                    fix="pass it as a tensor, or let the break look it up when it runs",
                    source=point.source,
                    at_warm_up=repr(seen),
                    at_capture=repr(value),
                )


def _plain_arguments(point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(point.fn).bind(*args, **kwargs).arguments
    except ValueError:  # a builtin that tells no signature
        bound = {str(position): value for position, value in enumerate(args)} | kwargs
    found = {name + path: leaf for name, value in bound.items() for path, leaf in leaves(value)}
    return {
        name: leaf for name, leaf in found.items() if isinstance(leaf, _PLAIN) and not isinstance(leaf, torch.Tensor)
    }
