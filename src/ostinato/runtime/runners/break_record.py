"""What one run of a key gave its breaks besides tensors, held against another run.

A replay never runs the code between breaks again, so a number or string that a break is given is frozen. If
it differs between warm-up and capture, or between capture and a later eager run, it depends on something the key
does not carry: that is an error that names the argument (PITFALLS: baked host values). A break that is missing at
capture is reported (FEATURES D6).
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
_FIX = "pass it as a tensor, or let the break look it up when it runs"


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
            if not _is_same(seen, value):
                raise FrozenValueError(
                    f"argument {name!r} of break {point.name!r} changes from run to run and would be frozen",
                    fix=_FIX,
                    source=point.source,
                    at_warm_up=repr(seen),
                    at_capture=repr(value),
                )

    def changed_since(self, capture: BreakRecord) -> FrozenValueError | None:
        """The first number or string of this run that is another than at ``capture``, whose values replays go on with.

        A compiler may have changed the order of breaks that do not depend on each other. So the calls of one break are
        compared in any order: values that only changed places are not told.
        """
        for point in dict.fromkeys(point for point, _ in self._calls):
            ours, theirs = self._values_of(point), capture._values_of(point)
            if len(ours) != len(theirs):
                continue  # other breaks than at capture: the outputs tell
            for now, frozen in zip(*_unmatched(ours, theirs), strict=True):
                for name, value in now.items():
                    if not _is_same(frozen.get(name, value), value):
                        return FrozenValueError(
                            f"argument {name!r} of break {point.name!r} has changed since capture, and replays go on "
                            "with the frozen value",
                            fix=_FIX,
                            source=point.source,
                            at_capture=repr(frozen[name]),
                            now=repr(value),
                        )
        return None

    def _values_of(self, point: BreakPoint) -> list[dict[str, Any]]:
        return [values for other, values in self._calls if other == point]


def _unmatched(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is left of either, in order, when equal ones are taken away in pairs."""
    left, right = [], list(theirs)
    for values in ours:
        index = next((i for i, other in enumerate(right) if _is_alike(values, other)), None)
        if index is None:
            left.append(values)
        else:
            del right[index]
    return left, right


def _is_alike(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return all(_is_same(value, theirs.get(name, value)) for name, value in ours.items())


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))  # NaN is equal to NaN here


def _plain_arguments(point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        call = inspect.signature(point.fn).bind(*args, **kwargs)
        call.apply_defaults()  # left out in one run, given in another
        bound = dict(call.arguments)
    except ValueError:  # a builtin that tells no signature
        bound = {str(position): value for position, value in enumerate(args)} | kwargs
    found = {name + path: leaf for name, value in bound.items() for path, leaf in leaves(value)}
    return {
        name: leaf for name, leaf in found.items() if isinstance(leaf, _PLAIN) and not isinstance(leaf, torch.Tensor)
    }
