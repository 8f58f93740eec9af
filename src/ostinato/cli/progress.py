"""Progress on standard error: bars on a terminal, one line for each finished piece of work elsewhere.

Implements the engine's `ProgressReporter`. Standard output stays free for results. Imports rich, so
commands import this file when they run and not before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from ostinato.engine.weights.progress import ProgressReporter

__all__ = ["BarProgress", "LineProgress", "progress_on_stderr"]


def progress_on_stderr() -> ProgressReporter:
    """The reporter that suits standard error as it is now."""
    console = Console(stderr=True)
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class BarProgress:
    """One bar after another; each stays on the screen with its time when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._task = TaskID(0)

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Show a bar; without a total it pulses."""
        self.finish()
        columns: list[ProgressColumn] = [TextColumn("{task.description:<28}"), BarColumn()]
        if unit == "bytes":
            columns += [DownloadColumn(), TransferSpeedColumn()]
        elif total is not None:
            columns += [MofNCompleteColumn(), TextColumn(unit, markup=False)]
        self._bars = Progress(*columns, TimeElapsedColumn(), console=self._console)
        self._task = self._bars.add_task(label, total=total)
        self._bars.start()

    def advance(self, n: int) -> None:
        """Move the bar by ``n`` units."""
        if self._bars is not None:
            self._bars.advance(self._task, n)

    def finish(self) -> None:
        """Leave the bar as it stands; one without a total is shown full."""
        if self._bars is None:
            return
        if self._bars.tasks[self._task].total is None:
            self._bars.update(self._task, total=1, completed=1)
        self._bars.stop()
        self._bars = None


class LineProgress:
    """For logs and pipes: a line when a piece of work has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._label: str | None = None
        self._unit = ""
        self._num_done = 0
        self._began = 0.0

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Remember what began; a log needs no line for that."""
        self.finish()
        self._label, self._unit, self._num_done = label, unit, 0
        self._began = time.perf_counter()

    def advance(self, n: int) -> None:
        """Count ``n`` units."""
        self._num_done += n

    def finish(self) -> None:
        """Print what was done and how long it took."""
        if self._label is None:
            return
        seconds = time.perf_counter() - self._began
        line = f"{self._label}: {self._done()}{seconds:.1f} s"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._label = None

    def _done(self) -> str:
        if not self._num_done:
            return ""
        if self._unit == "bytes":
            return f"{self._num_done / 2**20:,.1f} MiB in "
        return f"{self._num_done:,} {self._unit} in "
