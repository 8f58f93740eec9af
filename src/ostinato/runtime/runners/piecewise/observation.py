"""What eager warm-up shows of a marked function: types of its arguments, and how its results follow them.

Pure look-and-compare: an `Observation` a call, and from all of them the schema and the results' rules. The op
is made from these by `lowering`. What cannot be told from observations is an error here, never a guess.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.errors import UntraceableBreakError
from ostinato.runtime.breaks import BreakPoint
from ostinato.runtime.nest import map_leaves

__all__ = ["Fresh", "FromArgument", "Observation", "ResultRule", "observe_call", "result_rules", "schema_types"]

_NUMBERS: dict[type, str] = {int: "SymInt", float: "float", bool: "bool", str: "str"}


@dataclass(frozen=True, slots=True)
class FromArgument:
    """A result that is one of the arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """A result that the op returns; ``index`` among them."""

    index: int


@dataclass(frozen=True, slots=True)
class _Spec:
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Observation:
    """One call."""

    arguments: dict[str, _Spec | type]
    """By name: a tensor's spec, or another value's type."""
    template: Any
    """The result with `FromArgument` and `Fresh` in place of tensors."""
    fresh: tuple[_Spec, ...]


@dataclass(frozen=True, slots=True)
class ResultRule:
    """How a fresh result is allocated: for each dimension a constant or the (argument, dimension) it follows."""

    sizes: tuple[int | tuple[str, int], ...]
    dtype: torch.dtype | str
    """A dtype, or the name of the argument whose dtype it has."""
    device: torch.device


def observe_call(point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Observation:
    """What one call took and gave.

    Raises:
        UntraceableBreakError: an argument is of a type that no op can take, or a result is a view of an argument.
    """
    arguments = bound_arguments(point, args, kwargs)
    given = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    fresh: list[_Spec] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for name, tensor in given.items():
            if leaf is tensor or _geometry(leaf) == _geometry(tensor):
                return FromArgument(name)
        for name, tensor in given.items():
            if leaf.numel() and leaf.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                raise untraceable(point, f"it returns a view of its argument {name!r}")
        fresh.append(_Spec(tuple(leaf.shape), leaf.dtype, leaf.device))
        return Fresh(len(fresh) - 1)

    template = map_leaves(result, place)
    return Observation({name: _kind(point, name, value) for name, value in arguments.items()}, template, tuple(fresh))


def bound_arguments(point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The values of one call by parameter, defaults too."""
    bound = inspect.signature(point.fn).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def schema_types(point: BreakPoint, seen: Sequence[Observation]) -> dict[str, str]:
    """Argument -> its type in the op's schema, wide enough for all calls.

    Raises:
        UntraceableBreakError: an argument is now of one type, now of another.
    """
    found: dict[str, str] = {}
    for name in seen[0].arguments:
        kinds = {_schema_type(observation.arguments[name]) for observation in seen}
        optional = "?" if "None" in kinds else ""
        kinds.discard("None")
        if kinds == {"SymInt", "float"}:
            kinds = {"float"}
        if len(kinds) > 1:
            raise untraceable(point, f"argument {name!r} is now a {' and now a '.join(sorted(kinds))}")
        found[name] = (kinds.pop() if kinds else "Tensor") + optional
    return found


def result_rules(point: BreakPoint, seen: Sequence[Observation]) -> list[ResultRule]:
    """For each fresh result, how its shape, dtype and device follow from the arguments.

    Raises:
        UntraceableBreakError: they do not, or the result is of another kind from call to call.
    """
    if any(observation.template != seen[0].template for observation in seen):
        raise untraceable(point, "what it returns differs in more than tensors from call to call")
    return [_rule(point, seen, index) for index in range(len(seen[0].fresh))]


def untraceable(point: BreakPoint, why: str) -> UntraceableBreakError:
    """The error that says why ``point`` cannot be an op."""
    return UntraceableBreakError(
        f"break {point.name!r} cannot become a custom op: {why}",
        fix="pass tensors, numbers and strings, return its arguments or new tensors of sizes that follow them, or "
        "use partition='breakable', which needs no tracing",
        source=point.source,
    )


def _rule(point: BreakPoint, seen: Sequence[Observation], index: int) -> ResultRule:
    specs = [observation.fresh[index] for observation in seen]
    if len({len(spec.shape) for spec in specs}) != 1:
        raise untraceable(point, "the rank of its result differs from call to call")
    sizes = tuple(_size(point, seen, [spec.shape[dim] for spec in specs]) for dim in range(len(specs[0].shape)))
    if len({spec.device for spec in specs}) != 1:
        raise untraceable(point, "the device of its result differs from call to call")
    return ResultRule(sizes, _dtype(point, seen, [spec.dtype for spec in specs]), specs[0].device)


def _size(point: BreakPoint, seen: Sequence[Observation], sizes: list[int]) -> int | tuple[str, int]:
    for name, spec in seen[0].arguments.items():
        for dim in range(len(spec.shape) if isinstance(spec, _Spec) else 0):
            follows = [_shape(observation.arguments[name])[dim : dim + 1] for observation in seen]
            # A size that never changed is a constant: the tracer makes symbols only of sizes that change.
            if follows == [(size,) for size in sizes] and len(set(sizes)) > 1:
                return name, dim
    if len(set(sizes)) == 1:
        return sizes[0]
    raise untraceable(point, f"a size of its result ({sizes} over warm-up) follows no argument's size")


def _dtype(point: BreakPoint, seen: Sequence[Observation], dtypes: list[torch.dtype]) -> torch.dtype | str:
    if len(set(dtypes)) == 1:
        return dtypes[0]
    for name in seen[0].arguments:
        specs = [observation.arguments[name] for observation in seen]
        if [spec.dtype if isinstance(spec, _Spec) else None for spec in specs] == dtypes:
            return name
    raise untraceable(point, "the dtype of its result differs from call to call and follows no argument's")


def _kind(point: BreakPoint, name: str, value: Any) -> _Spec | type:
    if isinstance(value, torch.Tensor):
        return _Spec(tuple(value.shape), value.dtype, value.device)
    if value is not None and type(value) not in _NUMBERS:
        raise untraceable(point, f"argument {name!r} is a {type(value).__name__}, which no op can take")
    return type(value)


def _schema_type(kind: _Spec | type) -> str:
    return "Tensor" if isinstance(kind, _Spec) else _NUMBERS.get(kind, "None")


def _shape(kind: _Spec | type) -> tuple[int, ...]:
    return kind.shape if isinstance(kind, _Spec) else ()


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
