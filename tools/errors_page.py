"""Write docs/errors.md from the exception tree. `make docs` runs it; a test fails when the page is stale."""

from __future__ import annotations

from pathlib import Path

from ostinato.cli.errors import ErrorEntry, entries

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

INTRODUCTION = """\
# Errors

<!-- Written by tools/errors_page.py from src/ostinato/errors.py; edit that, then run `make docs`. -->

Every error that Ostinato raises on purpose is an `ostinato.OstinatoError`. It has a stable `code`, a
`message` (what failed), a `context` (where, what was expected and got) and a `fix` (what to do).
`to_dict()` gives them as plain values; the command line prints the same with `--json`.
`ostinato errors CODE` shows one entry of this page.

Where an error is also a built-in one (`ValueError`, `RuntimeError`), code that catches the built-in one
catches it too.
"""

FAMILIES = {
    "0": "Root",
    "1": "What you asked for",
    "2": "Capture",
    "3": "Replay and life cycle",
    "4": "Engine",
    "5": "Requests",
}


def render() -> str:
    """The whole page."""
    families: dict[str, list[ErrorEntry]] = {}
    for entry in entries():
        families.setdefault(entry.code[3], []).append(entry)
    parts = [INTRODUCTION]
    for digit, members in families.items():
        parts.append(f"\n## {FAMILIES[digit]}\n\n| code | error | is a | meaning |\n|---|---|---|---|\n")
        parts.extend(
            f'| <a id="{entry.code.lower()}"></a>{entry.code} | `{entry.name}` | `{entry.parent}` '
            f"| {_cell(entry.meaning)} |\n"
            for entry in members
        )
    return "".join(parts)


def _cell(text: str) -> str:
    """Docstring text as Markdown that is safe in a table cell."""
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
