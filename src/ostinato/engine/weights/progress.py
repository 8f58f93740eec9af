"""How long work tells its watcher how far it is.

The CLI plugs in progress bars, a test a recorder; without either it is silent. Called by whatever
downloads, converts or loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ProgressReporter(Protocol):
    """Watches one piece of work after another; they do not nest."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Work begins. ``total`` counts ``unit`` (``"bytes"``, ``"tensors"``); None when not known."""

    def advance(self, n: int) -> None:
        """``n`` more units are done."""

    def finish(self) -> None:
        """The work ended, well or not."""


class SilentProgress:
    """The default reporter: shows nothing."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Ignore it."""

    def advance(self, n: int) -> None:
        """Ignore it."""

    def finish(self) -> None:
        """Ignore it."""


@contextmanager
def reporting(
    progress: ProgressReporter | None, label: str, total: int | None, unit: str
) -> Iterator[ProgressReporter]:
    """Start a piece of work on ``progress`` and finish it however the block ends."""
    reporter: ProgressReporter = SilentProgress() if progress is None else progress
    reporter.start(label, total, unit)
    try:
        yield reporter
    finally:
        reporter.finish()
