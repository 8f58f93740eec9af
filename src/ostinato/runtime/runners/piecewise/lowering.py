"""Breaks as custom ops: what a marked function becomes when a compiler traces the callable.

The op is made from what eager warm-up saw: its schema from the arguments, its fake implementation from how
the results' sizes followed the arguments' sizes from key to key. So a break needs no annotations. Ops
carry torch's ``cudagraph_unsafe`` tag and count as having side effects, so that no compiler drops them.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.node import has_side_effect

from ostinato.errors import UntraceableBreakError
from ostinato.runtime.breaks import BREAK_NAMESPACE, BreakPoint, call_break
from ostinato.runtime.nest import leaves, map_leaves, skeleton

__all__ = ["BreakLowering", "find_lowering"]

_LIBRARY = torch.library.Library(BREAK_NAMESPACE, "FRAGMENT")
_serial = itertools.count()
_lowerings: dict[str, BreakLowering] = {}

_SCHEMA_TYPES: dict[type, str] = {int: "SymInt", float: "float", bool: "bool", str: "str"}


def find_lowering(target: Any) -> BreakLowering | None:
    """The break behind an op (an FX node's target, or what a dispatch mode sees), or None if it is another op."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = target.default
    schema = getattr(target, "_schema", None)
    return None if schema is None else _lowerings.get(schema.name)


@dataclass(frozen=True)
class _FromArgument:
    """A result that is one of the arguments."""

    name: str


@dataclass(frozen=True)
class _Fresh:
    """A result that the op returns; ``index`` among them."""

    index: int


@dataclass
class BreakLowering:
    """Observations of one marked function, and the op made from them."""

    point: BreakPoint
    observations: list[tuple[dict[str, Any], Any]] = field(default_factory=list)
    """Per eager run: shapes of the arguments by name, and shapes of the fresh results."""
    _types: dict[str, str] | None = None
    """Argument -> schema type."""
    _template: Any = None
    _fresh: list[torch.dtype] = field(default_factory=list)
    """Dtypes of the results that are no arguments."""
    _skeleton: Any = None
    op: Any = None

    def observe(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take in one eager call.

        Raises:
            UntraceableBreakError: an argument is of a type that no op can take, or the results nest otherwise
                than before.
        """
        bound = inspect.signature(self.point.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        by_address = {t.data_ptr(): n for n, t in arguments.items() if isinstance(t, torch.Tensor)}
        fresh: list[torch.Tensor] = []

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            owner = by_address.get(leaf.data_ptr())
            if owner is not None and leaf.shape == arguments[owner].shape:
                return _FromArgument(owner)
            fresh.append(leaf)
            return _Fresh(len(fresh) - 1)

        template = map_leaves(result, place)
        if self._types is None:
            self._types = {name: self._schema_type(name, value) for name, value in arguments.items()}
            self._template, self._skeleton = template, skeleton(result)
            self._fresh = [t.dtype for t in fresh]
        elif skeleton(result) != self._skeleton:
            raise self._untraceable("its results nest differently from call to call")
        shapes = {n: tuple(t.shape) for n, t in arguments.items() if isinstance(t, torch.Tensor)}
        self.observations.append((shapes, [tuple(t.shape) for t in fresh]))

    def lower(self) -> Callable[..., Any]:
        """The traceable stand-in for the marked function; makes the op on first use."""
        assert self._types is not None, "a break is lowered after warm-up has seen it"
        names = list(self._types)
        defaults = {n: p.default for n, p in inspect.signature(self.point.fn).parameters.items()}
        if self.op is None:
            self.op = self._register(self._types)
        op, template = self.op, self._template
        num_fresh = len(self._fresh)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            values = [*args, *(kwargs[n] if n in kwargs else defaults[n] for n in names[len(args) :])]
            returned = op(*values)
            fresh = [returned] if num_fresh == 1 else list(returned or ())
            by_name = dict(zip(names, values, strict=True))

            def fill(leaf: Any) -> Any:
                if isinstance(leaf, _Fresh):
                    return fresh[leaf.index]
                return by_name[leaf.name] if isinstance(leaf, _FromArgument) else leaf

            return map_leaves(template, fill)

        return stand_in

    def _register(self, types: dict[str, str]) -> Any:
        op_name = f"{re.sub(r'[^0-9a-zA-Z_]', '_', self.point.name)}_{next(_serial)}"
        marks = iter("abcdefghijklmnopqrstuvwxyz")
        parts = []
        for name, kind in types.items():
            is_written = name in self.point.mutates and kind == "Tensor"
            parts.append(f"Tensor({next(marks)}!) {name}" if is_written else f"{kind} {name}")
        returns = "(" + ", ".join(["Tensor"] * len(self._fresh)) + ")" if len(self._fresh) != 1 else "Tensor"
        tags = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
        _LIBRARY.define(f"{op_name}({', '.join(parts)}) -> {returns}", tags=tags)
        _LIBRARY.impl(op_name, self.run, "CompositeExplicitAutograd")
        rules = [self._size_rules(index) for index in range(len(self._fresh))]
        torch.library.register_fake(f"{BREAK_NAMESPACE}::{op_name}", self._fake(list(types), rules), lib=_LIBRARY)
        op = getattr(getattr(torch.ops, BREAK_NAMESPACE), op_name).default
        has_side_effect(op)
        _lowerings[f"{BREAK_NAMESPACE}::{op_name}"] = self
        return op

    def run(self, *values: Any) -> Any:
        """The op's real implementation: the break, by whoever handles breaks on this thread."""
        result = call_break(self.point, values, {})
        slots = [leaf for _, leaf in leaves(self._template)]
        found = [leaf for _, leaf in leaves(result)]
        fresh = [value for slot, value in zip(slots, found, strict=True) if isinstance(slot, _Fresh)]
        return _returned(fresh)

    def _fake(self, names: list[str], rules: list[list[int | tuple[str, int]]]) -> Callable[..., Any]:
        def fake(*values: Any) -> Any:
            by_name = dict(zip(names, values, strict=True))
            anchor = next(v for v in values if isinstance(v, torch.Tensor))
            made = [
                anchor.new_empty([r if isinstance(r, int) else by_name[r[0]].shape[r[1]] for r in rule], dtype=dtype)
                for rule, dtype in zip(rules, self._fresh, strict=True)
            ]
            return _returned(made)

        return fake

    def _size_rules(self, index: int) -> list[int | tuple[str, int]]:
        """For each dimension of fresh result ``index``: a constant, or the (argument, dimension) it follows."""
        shapes = [fresh[index] for _, fresh in self.observations]
        if len({len(shape) for shape in shapes}) != 1:
            raise self._untraceable("the rank of its result differs from call to call")
        return [self._size_rule([shape[dim] for shape in shapes]) for dim in range(len(shapes[0]))]

    def _size_rule(self, sizes: list[int]) -> int | tuple[str, int]:
        arguments = [shapes for shapes, _ in self.observations]
        for name, shape in arguments[0].items():
            for dim in range(len(shape)):
                if [observed[name][dim] for observed in arguments] == sizes and (
                    len(set(sizes)) > 1 or (len(sizes) == 1 and dim == 0)
                ):
                    return name, dim
        if len(set(sizes)) == 1:
            return sizes[0]
        raise self._untraceable(f"a size of its result ({sizes} over warm-up) follows no argument's size")

    def _schema_type(self, name: str, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return "Tensor"
        if value is None:
            return "Tensor?"
        kind = _SCHEMA_TYPES.get(type(value))
        if kind is None:
            raise self._untraceable(f"argument {name!r} is a {type(value).__name__}, which no op can take")
        return kind

    def _untraceable(self, why: str) -> UntraceableBreakError:
        return UntraceableBreakError(
            f"break {self.point.name!r} cannot become a custom op: {why}",
            fix="pass tensors, numbers and strings, return tensors of sizes that follow them, or use "
            "partition='breakable', which needs no tracing",
            source=self.point.source,
        )


def _returned(values: list[torch.Tensor]) -> Any:
    """How an op returns none, one or several tensors."""
    if len(values) < 2:
        return values[0] if values else None
    return tuple(values)
