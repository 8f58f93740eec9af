"""Under which condition may an op be captured: what `classify` lets pass and the doctor still reports.

Reads the conditional rows of `rules`, torch's operator tags and schemas. Forbids nothing, so captures do not
ask here; rules that need two runs to compare are applied by the doctor itself.
"""

from __future__ import annotations

from typing import Any

import torch

from ostinato.runtime.ops.classify import op_name
from ostinato.runtime.ops.rules import (
    ATTENTION_OPS,
    ATTENTION_WORDS,
    COLLECTIVE_NAMESPACES,
    COLLECTIVE_RULE,
    CONDITIONAL_RULES,
    HOST_LENGTH_ARGUMENTS,
    HOST_LENGTH_RULE,
    RANDOM_RULE,
    UNBROKEN_RULE,
    OpRule,
)

__all__ = ["draws", "find_condition", "is_attention", "written_tensors"]


def find_condition(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpRule | None:
    """The rule with the condition under which this call may be captured, or None if there is none."""
    name = op_name(func)
    if is_attention(name):
        given = _given(func, args, kwargs)
        takes_lengths = any(isinstance(given.get(argument), int) for argument in HOST_LENGTH_ARGUMENTS)
        return HOST_LENGTH_RULE if takes_lengths else UNBROKEN_RULE
    if name.partition("::")[0] in COLLECTIVE_NAMESPACES:
        return COLLECTIVE_RULE
    if name in CONDITIONAL_RULES:
        return CONDITIONAL_RULES[name]
    return RANDOM_RULE if torch.Tag.nondeterministic_seeded in func.tags else None


def draws(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call draws random numbers, by torch's tag; attention without dropout has the tag and draws none."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return (defaults | _given(func, args, kwargs)).get("dropout_p") != 0.0


def is_attention(name: str) -> bool:
    """Whether an op, by its name, lets rows of a batch read each other."""
    namespace, _, op = name.partition("::")
    return name in ATTENTION_OPS or (namespace != "aten" and any(word in op.lower() for word in ATTENTION_WORDS))


def written_tensors(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that this call writes in place, by its schema."""
    if not func._schema.is_mutable:
        return []
    given = _given(func, args, kwargs)
    written: list[torch.Tensor] = []
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = given.get(argument.name)
            values = value if isinstance(value, (list, tuple)) else [value]
            written += [v for v in values if isinstance(v, torch.Tensor)]
    return written


def _given(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by name."""
    return {**{a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}, **kwargs}
