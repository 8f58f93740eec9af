"""A diagnosis for people: a table of ops, worst first, and what to do below it. Called by ``ostinato doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from ostinato.runtime import Diagnosis, ModeOutcome

__all__ = ["ops_table", "summary"]

_COLOURS = {"friendly": "green", "conditional": "yellow", "unfriendly": "red"}


def ops_table(diagnosis: Diagnosis, *, title: str = "", show_all: bool = False) -> Table:
    """A row for each op, line and verdict; friendly ones only if asked for."""
    friendly = [op for op in diagnosis.ops if op.verdict.value == "friendly"]
    caption = f"{diagnosis.num_ops} ops in a call; {sum(op.count for op in friendly)} of them friendly"
    if friendly and not show_all:
        caption += " (--all lists them)"
    table = Table(title=title or None, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("verdict")
    table.add_column("op", overflow="fold")
    table.add_column("why", overflow="fold")
    table.add_column("where", overflow="fold")
    table.add_column("count", justify="right")
    table.add_column("time", justify="right")
    for op in diagnosis.ops:
        if op in friendly and not show_all:
            continue
        colour = _COLOURS[op.verdict.value]
        where = f"{_short(op.file)}:{op.line}"
        table.add_row(
            f"[{colour}]{op.verdict.value}[/]",
            escape(op.op),
            escape(op.reason),
            escape(where),
            str(op.count),
            f"{op.share:.1%}",
        )
    return table


def summary(diagnosis: Diagnosis) -> str:
    """The verdict, fixes, suggested breaks, modes, advice and notes, as markup."""
    colour = _COLOURS[diagnosis.verdict.value]
    lines = [f"[bold {colour}]{_VERDICTS[diagnosis.verdict.value]}[/]"]
    detailed = [op for op in diagnosis.ops if op.detail]
    lines += [escape(f"  {_short(op.file)}:{op.line}: {op.op}: {op.detail}") for op in detailed]
    fixes = {op.fix: op.reason for op in diagnosis.ops if op.fix}
    lines += [f"  fix for {escape(reason)}: {escape(fix)}" for fix, reason in fixes.items()]
    if diagnosis.suggested_breaks:
        lines.append("mark with @graph_break:")
        lines += [f"  {escape(b.function)}  ({escape(_short(b.file))}:{b.line})" for b in diagnosis.suggested_breaks]
    lines += [escape(line) for line in diagnosis.advice]
    for name, outcome in diagnosis.modes.items():
        lines += _mode(name, outcome)
    lines += [f"note: {escape(note)}" for note in diagnosis.notes]
    return "\n".join(lines) + "\n"


_VERDICTS = {
    "friendly": "nothing blocks capture",
    "conditional": "nothing blocks capture; some ops set conditions",
    "unfriendly": "something blocks capture",
}


def _mode(name: str, outcome: ModeOutcome) -> list[str]:
    mark = "[green]works[/]" if outcome.works else "[red]fails[/]"
    breaks = ", with the suggested breaks" if outcome.with_suggested_breaks else ""
    if outcome.is_captured:
        text = f"{outcome.num_segments} segments, {outcome.num_breaks} breaks, {outcome.num_nodes} nodes"
        text += f"; replay against eager: {outcome.replay}" + ("; holds blockers" if outcome.holds_blockers else "")
    else:
        error = outcome.error or {}
        text = f"{error.get('type', '')}: {error.get('message', '')}"
    return [f"{name}{breaks}: {mark}: {escape(text)}", *(f"  warning: {escape(w)}" for w in outcome.warnings)]


def _short(file: str) -> str:
    """Relative to where the user stands, if it lies below."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
