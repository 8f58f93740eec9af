"""Hold two runs against each other: what differs although the inputs' shapes are the same would be frozen.

Two calls with the same inputs show what changes from call to call (a Python counter); two halves of the batch
show what follows the data (a longest length read on the host). Pure; `diagnose` makes the runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from ostinato.runtime.doctor.frames import Stack
from ostinato.runtime.doctor.record import OpRecord, Run
from ostinato.runtime.ops import BlockReason, OpRule, Verdict
from ostinato.runtime.ops.rules import (
    CONTROL_FLOW_RULE,
    HOST_INTEGER_RULE,
    HOST_TABLE_RULE,
    JIT_EVERY_CALL_RULE,
    OP_RULES,
)

__all__ = ["Difference", "differences"]

_GROWS_RULE = OpRule(Verdict.UNFRIENDLY, BlockReason.DATA_DEPENDENT_SHAPE, OP_RULES["aten::nonzero"].fix)


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that a capture would freeze."""

    record: OpRecord
    """Of the first run."""
    rule: OpRule
    stack: Stack
    detail: str


def differences(one: Run, other: Run) -> Iterator[Difference]:
    """What differs between two runs on inputs of equal shapes, in the order of the first run."""
    pairs, diverged = _align(one.records, other.records)
    for a, b in pairs:
        if a.input_shapes != b.input_shapes:
            continue  # explained by shapes, or by an earlier difference
        if a.host_values != b.host_values:
            yield Difference(a, _rule_for_values(a), a.stack, _changed_values(a, b))
        elif a.output_shapes != b.output_shapes and a.rule is None:
            detail = f"its result is {_sizes(a)} in one run and {_sizes(b)} in another"
            yield Difference(a, _GROWS_RULE, a.stack, detail)
    for a, b in diverged:
        stack = _common(a.stack, b.stack)
        if stack.frames:
            yield Difference(a, CONTROL_FLOW_RULE, stack, "two runs on inputs of one size take different paths")


def _rule_for_values(record: OpRecord) -> OpRule:
    if record.op == "jit_mark":
        return JIT_EVERY_CALL_RULE
    return HOST_TABLE_RULE if record.op.startswith("aten::lift") else HOST_INTEGER_RULE


def _align(
    one: list[OpRecord], other: list[OpRecord]
) -> tuple[list[tuple[OpRecord, OpRecord]], list[tuple[OpRecord, OpRecord]]]:
    """Records that are the same call, and the pairs at which the runs part ways."""
    keys, other_keys = [r.key for r in one], [r.key for r in other]
    if keys == other_keys:
        return list(zip(one, other, strict=True)), []
    pairs: list[tuple[OpRecord, OpRecord]] = []
    diverged: list[tuple[OpRecord, OpRecord]] = []
    for tag, i, i_end, j, j_end in SequenceMatcher(None, keys, other_keys, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs += zip(one[i:i_end], other[j:j_end], strict=True)
        elif i < len(one) and j < len(other):
            diverged.append((one[i], other[j]))
        else:  # one run ends early: it parted ways after the last common op
            longer = one[i] if i < len(one) else other[j]
            before = one[i - 1] if i > 0 else longer
            diverged.append((before, longer))
    return pairs, diverged


def _common(one: Stack, other: Stack) -> Stack:
    """Up to the innermost function that both stacks are in: there the two runs parted ways."""
    depth = 0
    for a, b in zip(one.frames, other.frames, strict=False):
        if a.code is not b.code:
            break
        depth += 1
        if a.line != b.line:
            break
    frames = one.frames[:depth]
    return Stack(frames, frames[-1] if frames else None)


def _changed_values(a: OpRecord, b: OpRecord) -> str:
    if a.op.startswith("aten::lift"):
        return "it is made from host data that differs from batch to batch"
    changed = [(x, y) for x, y in zip(a.host_values, b.host_values, strict=False) if x != y]
    if not changed:
        return "it takes another number of arguments in another run"
    return f"{changed[0][0]!r} in one run and {changed[0][1]!r} in another, on inputs of one size"


def _sizes(record: OpRecord) -> str:
    return ", ".join(str(list(shape)) for shape, _ in record.output_shapes)
