"""From records and differences to findings, and to the stacks of what blocks.

Calls of one op on one line with one verdict are one finding. Ops inside declared breaks run eagerly and count
as friendly; what speaks against them matters to a full graph only, and is told there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ostinato.runtime.doctor.compare import Difference
from ostinato.runtime.doctor.findings import OpFinding
from ostinato.runtime.doctor.frames import Stack
from ostinato.runtime.doctor.record import OpRecord
from ostinato.runtime.ops import OpRule, Verdict
from ostinato.runtime.ops.rules import CONTROL_FLOW_RULE, KEPT_TENSOR_RULE

__all__ = ["Judged", "findings", "judge", "worst"]

_ORDER = [Verdict.FRIENDLY, Verdict.CONDITIONAL, Verdict.UNFRIENDLY]


@dataclass(frozen=True, slots=True)
class Judged:
    """One call on one line, with the rule that applies to it."""

    op: str
    rule: OpRule | None
    stack: Stack
    seconds: float = 0.0
    detail: str = ""
    in_break: str = ""

    @property
    def verdict(self) -> Verdict:
        """Of this call, as the code stands."""
        return Verdict.FRIENDLY if self.rule is None or self.in_break else self.rule.verdict


def judge(records: Sequence[OpRecord], again: Sequence[OpRecord], found: Iterable[Difference]) -> list[Judged]:
    """Every record with its rule, and the differences that are no op of this run.

    Args:
        records: of the first run.
        again: of a second run: tensors that this one keeps were not kept by lazy initialisation.
        found: differences between any two runs.
    """
    kept = {record.key for record in again if record.is_kept}
    values: dict[Hashable, Difference] = {}
    flow: list[Difference] = []
    for difference in found:
        if difference.rule is CONTROL_FLOW_RULE:
            flow.append(difference)
        else:
            values.setdefault(difference.record.key, difference)
    judged = [_judge_record(record, values.get(record.key), record.key in kept) for record in records]
    known = {record.key for record in records}
    for key, difference in values.items():
        if key not in known:
            judged.append(_judge_difference(difference, difference.record.op))
    blocked = {one.stack.place for one in judged if one.verdict is Verdict.UNFRIENDLY}
    for difference in flow:  # a branch on a tensor shows itself as a host sync already
        if difference.stack.place not in blocked:
            blocked.add(difference.stack.place)
            judged.append(_judge_difference(difference, "control flow"))
    return judged


def findings(judged: Sequence[Judged]) -> tuple[OpFinding, ...]:
    """Grouped, the worst first, then by time."""
    total = sum(one.seconds for one in judged) or 1.0
    groups: dict[Hashable, list[Judged]] = {}
    for one in judged:
        groups.setdefault((one.op, one.verdict, _reason(one), one.stack.place), []).append(one)
    found = []
    for members in groups.values():
        first = members[0]
        place, counts = first.stack.place, first.verdict is not Verdict.FRIENDLY
        found.append(
            OpFinding(
                op=first.op,
                verdict=first.verdict,
                reason=_reason(first),
                file="" if place is None else place.file,
                line=0 if place is None else place.line,
                count=len(members),
                share=sum(one.seconds for one in members) / total,
                function="" if place is None else place.function,
                detail=next((one.detail for one in members if one.detail), ""),
                fix=first.rule.fix if counts and first.rule is not None else "",
            )
        )
    return tuple(sorted(found, key=lambda one: (-_ORDER.index(one.verdict), -one.share)))


def worst(found: Sequence[OpFinding]) -> Verdict:
    """The verdict of the whole callable."""
    return max((one.verdict for one in found), key=_ORDER.index, default=Verdict.FRIENDLY)


def _judge_record(record: OpRecord, difference: Difference | None, is_kept: bool) -> Judged:
    rule, detail = record.rule, ""
    if difference is not None and (rule is None or rule.verdict is not Verdict.UNFRIENDLY):
        rule, detail = difference.rule, difference.detail
    if rule is None and is_kept:
        rule = KEPT_TENSOR_RULE
    return Judged(record.op, rule, record.stack, record.seconds, detail, record.in_break)


def _judge_difference(difference: Difference, op: str) -> Judged:
    return Judged(op, difference.rule, difference.stack, 0.0, difference.detail, difference.record.in_break)


def _reason(one: Judged) -> str:
    if one.in_break:
        return f"runs eagerly in break {one.in_break}"
    return "" if one.rule is None else one.rule.reason.value
