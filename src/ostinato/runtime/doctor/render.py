"""A diagnosis as plain text, for logs and notebooks. The command line draws its own tables.

Friendly ops are only counted. Called by users.
"""

from __future__ import annotations

from ostinato.runtime.doctor.findings import Diagnosis, ModeOutcome, OpFinding
from ostinato.runtime.ops import Verdict

__all__ = ["render"]


def render(diagnosis: Diagnosis) -> str:
    """The whole diagnosis, one thing on a line."""
    marked = [op for op in diagnosis.ops if op.verdict is not Verdict.FRIENDLY]
    return "\n".join([_headline(diagnosis), *map(_op_line, marked), *_summary(diagnosis)])


def _summary(diagnosis: Diagnosis) -> list[str]:
    """Fixes, suggested breaks, modes, advice and notes."""
    lines: list[str] = []
    fixes = {op.fix: op.reason for op in diagnosis.ops if op.fix}
    lines += [f"fix ({reason}): {fix}" for fix, reason in fixes.items()]
    lines += [f"mark with @graph_break: {b.function} ({b.file}:{b.line})" for b in diagnosis.suggested_breaks]
    lines += list(diagnosis.advice)
    lines += [line for name, outcome in diagnosis.modes.items() for line in _mode_lines(name, outcome)]
    lines += [f"note: {note}" for note in diagnosis.notes]
    return lines


def _mode_lines(name: str, outcome: ModeOutcome) -> list[str]:
    """What a mode gives, and its warnings, a line each."""
    with_breaks = " with the suggested breaks" if outcome.with_suggested_breaks else ""
    if outcome.is_captured:
        text = (
            f"{name}{with_breaks}: {outcome.num_segments} segments, {outcome.num_breaks} breaks, "
            f"{outcome.num_nodes} nodes; replay against eager: {outcome.replay}"
        ) + ("; holds blockers" if outcome.holds_blockers else "")
    else:
        error = outcome.error or {}
        text = f"{name}{with_breaks}: not captured: {error.get('type', '')}: {error.get('message', '')}"
    return [text, *(f"  warning: {warning}" for warning in outcome.warnings)]


def _headline(diagnosis: Diagnosis) -> str:
    return (
        f"{diagnosis.verdict.value}: {diagnosis.num_ops} ops, {len(diagnosis.blockers)} blockers on "
        f"{len({(op.file, op.line) for op in diagnosis.blockers})} lines"
    )


def _op_line(op: OpFinding) -> str:
    detail = f"; {op.detail}" if op.detail else ""
    return f"{op.verdict.value}: {op.op} x{op.count} ({op.share:.1%}) {op.file}:{op.line}: {op.reason}{detail}"
