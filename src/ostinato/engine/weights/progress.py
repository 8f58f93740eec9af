"""How long work tells its watcher how far it is.

The CLI plugs in progress bars, a test a recorder; without either, the log alone says on INFO what began and how long it
took. Called by whatever downloads, converts, loads or captures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

logger = logging.getLogger("ostinato")


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
    logger.info("%s begins%s", label, "" if total is None else f": {total:,} {unit}")
    began = time.monotonic()
    reporter.start(label, total, unit)
    try:
        yield reporter
    finally:
        reporter.finish()
        logger.info("%s ended after %.1f s", label, time.monotonic() - began)
