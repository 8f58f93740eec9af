"""`CallLayout`: how a call's arguments map to slots.

Made from one example call (or from declared slots). Tensors become slots; everything else is frozen in the
graph and must come back equal. The batch axis is the first dimension of the first tensor; another tensor
shares it if its first dimension has the same length in the example.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ostinato.errors import ConfigError, InputSpecError
from ostinato.runtime.buffers.guards import check_baked, check_input
from ostinato.runtime.buffers.slots import Slot
from ostinato.runtime.nest import leaves, map_leaves

__all__ = ["CallLayout"]

_KEYWORD = re.compile(r"^\[1\]\['(\w+)'\]")


class CallLayout:
    """Names and order of the leaves of a call; splits live calls and joins static ones."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, slots: dict[str, Slot]) -> None:
        self.slots = slots
        self._example = (args, kwargs)
        self._expected = dict(leaves(self._example))
        self._is_flat = not kwargs and all(isinstance(arg, _SlotMark) for arg in args)

    @classmethod
    def from_example(cls, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallLayout:
        """The layout of ``fn(*args, **kwargs)``.

        Raises:
            ConfigError: there is no tensor with a batch axis among the arguments.
        """
        named = [(name, leaf) for name, leaf in _named_leaves(fn, args, kwargs) if isinstance(leaf, torch.Tensor)]
        num_rows = next((t.shape[0] for _, t in named if t.dim() > 0), None)
        if num_rows is None:
            raise ConfigError("the example has no tensor with a batch axis", fix="pass example=(tensor, ...)")
        slots = {
            name: Slot(
                shape=(None, *t.shape[1:]) if t.dim() > 0 and t.shape[0] == num_rows else tuple(t.shape),
                dtype=t.dtype,
            )
            for name, t in named
        }
        # Keep only the structure: the example's tensors are the caller's.
        marks = iter(slots)
        frozen_args, frozen_kwargs = map_leaves((args, kwargs), lambda leaf: _freeze(leaf, marks))
        return cls(frozen_args, frozen_kwargs, slots=slots)

    @classmethod
    def from_slots(cls, slots: Mapping[str, Slot]) -> CallLayout:
        """The layout of a callable that takes one positional tensor a slot, in order."""
        if not slots:
            raise ConfigError("no slots were declared", fix="declare at least one Slot")
        return cls(tuple(_SlotMark(name) for name in slots), {}, slots=dict(slots))

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
        """The tensors of a live call by slot name, checked.

        Raises:
            InputSpecError: another structure, rank, shape, dtype, device or frozen value than declared.
        """
        given = dict(leaves((args, kwargs)))  # by path: keyword arguments have no order
        if given.keys() != self._expected.keys():
            raise InputSpecError(
                "the call has another structure than the example",
                fix="pass the same number and nesting of arguments",
                expected=_spoken(self._expected),
                got=_spoken(given),
            )
        found: dict[str, torch.Tensor] = {}
        for path, expected in self._expected.items():
            value = given[path]
            if isinstance(expected, _SlotMark):
                check_input(expected.name, self.slots[expected.name], value, device)
                found[expected.name] = value
            else:
                check_baked(path, expected, value)
        self._check_rows(found)
        return found

    def num_rows(self, found: Mapping[str, torch.Tensor], axis: str) -> int | None:
        """Live count on ``axis``, read off the first slot that has it."""
        for name, value in found.items():
            slot = self.slots[name]
            if slot.axis == axis:
                return value.shape[0] - slot.extra
        return None

    def join(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` with ``tensors`` in their places and the frozen values elsewhere."""
        if self._is_flat:
            return tuple([tensors[mark.name] for mark in self._example[0]]), {}
        joined = map_leaves(self._example, lambda leaf: tensors[leaf.name] if isinstance(leaf, _SlotMark) else leaf)
        return joined[0], joined[1]

    def _check_rows(self, found: Mapping[str, torch.Tensor]) -> None:
        seen: dict[str, tuple[str, int]] = {}
        for name, value in found.items():
            slot = self.slots[name]
            if slot.axis is None:
                continue
            rows = value.shape[0] - slot.extra
            first = seen.setdefault(slot.axis, (name, rows))
            if rows != first[1]:
                raise InputSpecError(
                    f"argument {name!r} has {rows} rows on axis {slot.axis}",
                    fix="pass the same number of rows in all arguments of one axis",
                    expected=f"{first[1]} as in {first[0]!r}",
                )
            if rows < 1:
                raise InputSpecError(
                    f"argument {name!r} has {value.shape[0]} rows on axis {slot.axis}",
                    fix="make no call where there is nothing to run; there is no upper limit",
                    expected=f"{1 + slot.extra} or more",
                )


class _SlotMark:
    """Stands in the frozen example where a slot's tensor goes."""

    def __init__(self, name: str) -> None:
        self.name = name


def _freeze(leaf: Any, names: Any) -> Any:
    return _SlotMark(next(names)) if isinstance(leaf, torch.Tensor) else leaf


def _named_leaves(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Leaves in call order, named by ``fn``'s parameters where they can be known."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        found = inspect.signature(target).parameters.values()
        parameters = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        parameters = []
    named: list[tuple[str, Any]] = []
    for index, arg in enumerate(args):
        prefix = parameters[index] if index < len(parameters) else f"args[{index}]"
        named += [(prefix + path, leaf) for path, leaf in leaves(arg)]
    for key, value in kwargs.items():
        named += [(key + path, leaf) for path, leaf in leaves(value)]
    return named


def _spoken(paths: Iterable[str]) -> str:
    """Paths of leaves in ``(args, kwargs)`` as one would write them: ``args[0], mask, cache['k']``."""
    return ", ".join(_KEYWORD.sub(r"\1", path.replace("[0]", "args", 1)) for path in paths) or "no arguments"
