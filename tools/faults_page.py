"""Write docs/faults.md from the planted faults. `make docs` runs it; a test fails when the page is stale."""

from __future__ import annotations

from pathlib import Path

from ostinato.errors import OstinatoError
from ostinato.testing.faults import ALL, Fault

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"

INTRODUCTION = """\
# Faults

<!-- Written by tools/faults_page.py from src/ostinato/testing/faults; edit that, then run `make docs`. -->

The ways in which graph replay is known to go wrong. Users of other systems met each of them, and most gave wrong
answers, not crashes. Each is planted in a small program, `ostinato.testing.faults.ALL[row]`, and run twice: through
the public API, where it must raise the error named here or come out right, and without the protection, where it must
go wrong. Faults without an error are prevented by construction.

"Control" says where the program without the protection goes wrong: on the simulated backend, hence in every test run,
or on a GPU alone.

| row | what goes wrong | met at | protection | error | cost | control |
|---|---|---|---|---|---|---|
"""


def render() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_row(fault) for fault in ALL.values())


def _row(fault: Fault) -> str:
    errors = {_link(error) for error in (fault.caught_by, fault.caught_when_traced) if error is not None}
    cells = [
        f'<a id="row-{fault.row}"></a>{fault.row}',
        fault.title,
        fault.source,
        fault.protection,
        ", ".join(sorted(errors)) or "by construction",
        fault.cost,
        "simulated" if fault.control_device == "cpu" else "GPU",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _link(error: type[OstinatoError]) -> str:
    return f"[{error.code}](errors.md#{error.code.lower()}) `{error.__name__}`"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
