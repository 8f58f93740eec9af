"""Breaks as custom ops: what a marked function becomes when a compiler traces the callable.

The op is made from what eager warm-up saw (`observation`): its schema from the arguments, its fake
implementation from how the results' sizes followed the arguments' sizes from key to key. So a break needs no
annotations. Ops carry torch's ``cudagraph_unsafe`` tag and count as having side effects, so that no compiler
drops them.
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

from ostinato.runtime.breaks import BreakPoint, call_break
from ostinato.runtime.nest import leaves, map_leaves
from ostinato.runtime.runners.piecewise.observation import (
    Fresh,
    FromArgument,
    Observation,
    ResultRule,
    observe_call,
    result_rules,
    schema_types,
    untraceable,
)

__all__ = ["NAMESPACE", "BreakLowering", "find_lowering"]

NAMESPACE = "ostinato_breaks"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_serial = itertools.count()
_lowerings: dict[str, BreakLowering] = {}


def find_lowering(target: Any) -> BreakLowering | None:
    """The break behind an op (an FX node's target, or what a dispatch mode sees), or None if it is another op."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, "default", target)  # many packets have no overload of that name
    schema = getattr(target, "_schema", None)
    return None if schema is None else _lowerings.get(schema.name)


@dataclass
class BreakLowering:
    """Observations of one marked function, and the op made from them."""

    point: BreakPoint
    observations: list[Observation] = field(default_factory=list)
    """One an eager call."""
    op: Any = None
    _names: list[str] = field(default_factory=list)
    """Parameters, in the op's order: those that are keyword-only come last."""
    _num_positional: int = 0
    _stand_in: Callable[..., Any] | None = None

    def observe(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take in one eager call.

        Raises:
            UntraceableBreakError: an argument is of a type that no op can take, or a result is a view of one.
        """
        self.observations.append(observe_call(self.point, args, kwargs, result))

    def stand_in(self) -> Callable[..., Any]:
        """What is traceable in place of the marked function, the same each time; makes the op on first use.

        Raises:
            UntraceableBreakError: no one schema fits all calls, or the results follow no rule.
        """
        assert self.observations, "a break is lowered after warm-up has seen it"
        if self._stand_in is not None:
            return self._stand_in
        self.op = self._register()
        op, names, template = self.op, self._names, self._template
        defaults = {n: p.default for n, p in inspect.signature(self.point.fn).parameters.items()}
        num_fresh = len(self.observations[0].fresh)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            values = [*args, *(kwargs[n] if n in kwargs else defaults[n] for n in names[len(args) :])]
            returned = op(*values)
            fresh = [returned] if num_fresh == 1 else list(returned or ())
            by_name = dict(zip(names, values, strict=True))

            def fill(leaf: Any) -> Any:
                if isinstance(leaf, Fresh):
                    return fresh[leaf.index]
                return by_name[leaf.name] if isinstance(leaf, FromArgument) else leaf

            return map_leaves(template, fill)

        self._stand_in = stand_in
        return stand_in

    @property
    def _template(self) -> Any:
        return self.observations[0].template

    def _register(self) -> Any:
        types = schema_types(self.point, self.observations)
        rules = result_rules(self.point, self.observations)
        self._names = list(types)
        parameters = inspect.signature(self.point.fn).parameters
        self._num_positional = sum(parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY for name in types)
        op_name = f"{re.sub(r'[^0-9a-zA-Z_]', '_', self.point.name)}_{next(_serial)}"
        marks = (f"Tensor(a{index}!)" for index in itertools.count())
        parts = []
        for name, kind in types.items():
            is_written = name in self.point.mutates and kind.startswith("Tensor")
            parts.append(f"{kind.replace('Tensor', next(marks)) if is_written else kind} {name}")
        returns = "(" + ", ".join(["Tensor"] * len(rules)) + ")" if len(rules) != 1 else "Tensor"
        tags = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
        _LIBRARY.define(f"{op_name}({', '.join(parts)}) -> {returns}", tags=tags)
        _LIBRARY.impl(op_name, self.run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{op_name}", self._fake(rules), lib=_LIBRARY)
        op = getattr(getattr(torch.ops, NAMESPACE), op_name).default
        has_side_effect(op)
        _lowerings[f"{NAMESPACE}::{op_name}"] = self
        return op

    def run(self, *values: Any) -> Any:
        """The op's real implementation: the break, by whoever handles breaks on this thread.

        Raises:
            UntraceableBreakError: it returned something of another kind than in the first warm-up.
        """
        count = self._num_positional
        args, kwargs = values[:count], dict(zip(self._names[count:], values[count:], strict=True))
        result = call_break(self.point, args, kwargs)
        if observe_call(self.point, args, kwargs, result).template != self._template:
            raise untraceable(self.point, "what it returns differs in more than tensors from call to call")
        slots = [leaf for _, leaf in leaves(self._template)]
        found = [leaf for _, leaf in leaves(result)]
        # Compilers take results for contiguous, as the fake implementation says; what lies in a bridge is.
        return _returned([v.contiguous() for slot, v in zip(slots, found, strict=True) if isinstance(slot, Fresh)])

    def _fake(self, rules: list[ResultRule]) -> Callable[..., Any]:
        def fake(*values: Any) -> Any:
            given = dict(zip(self._names, values, strict=True))
            made = []
            for rule in rules:
                sizes = [size if isinstance(size, int) else given[size[0]].shape[size[1]] for size in rule.sizes]
                dtype = given[rule.dtype].dtype if isinstance(rule.dtype, str) else rule.dtype
                made.append(torch.empty(sizes, dtype=dtype, device=rule.device))
            return _returned(made)

        return fake


def _returned(values: list[torch.Tensor]) -> Any:
    """How an op returns none, one or several tensors."""
    if len(values) < 2:
        return values[0] if values else None
    return tuple(values)
