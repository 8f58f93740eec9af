"""Watchers of the demo's burst: a live table on a terminal, lines elsewhere, or just a progress bar.

Each is a context manager. They show; they decide nothing. Imports rich, so `demo` imports this file when
it runs.
"""

from __future__ import annotations

import textwrap
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ostinato.cli.answers import Answer
from ostinato.cli.burst import Watcher

if TYPE_CHECKING:
    from ostinato.engine.weights.progress import ProgressReporter

__all__ = ["Board", "CountBoard", "LineBoard", "LiveBoard", "board_on"]

_PROMPT_COLUMNS = 30


class Board(Watcher):
    """A watcher that is open while the burst runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close; by default there is nothing to close."""


def board_on(console: Console, num_requests: int) -> Board:
    """The board that suits ``console``."""
    return LiveBoard(console, num_requests) if console.is_terminal else LineBoard(console)


class LiveBoard(Board):
    """One row for each request, redrawn as text arrives; it goes away at the end."""

    def __init__(self, console: Console, num_requests: int) -> None:
        self._console = console
        self._answers: list[Answer | None] = [None] * num_requests
        self._live = Live(console=console, transient=True, refresh_per_second=12, get_renderable=self._draw)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def arrived(self, index: int, answer: Answer) -> None:
        """Show the request as running."""
        self._answers[index] = answer

    def moved(self, index: int, answer: Answer) -> None:
        """Nothing to do: the next frame reads the answer itself."""

    def _draw(self) -> Table:
        table = Table(title="Requests", title_justify="left", expand=True)
        table.add_column("request", width=_PROMPT_COLUMNS, no_wrap=True)
        table.add_column("answer", ratio=1, no_wrap=True)
        table.add_column("tokens", justify="right")
        table.add_column("state", width=len("waiting"))
        # What is left beside the other columns, their padding and the borders.
        width = max(10, self._console.width - _PROMPT_COLUMNS - len("tokens") - len("waiting") - 13)
        for answer in self._answers:
            if answer is None:
                table.add_row("", "", "", Text("waiting", style="dim"))
                continue
            text = " ".join(answer.text.split())
            tail = text if len(text) <= width else "…" + text[1 - width :]
            state = Text("running", style="yellow") if answer.finish_reason is None else Text("done", style="green")
            table.add_row(Text(answer.prompt), Text(tail), str(len(answer.token_ids)), state)
        return table


class LineBoard(Board):
    """A line when a request arrives and one when it ends, numbered."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def arrived(self, index: int, answer: Answer) -> None:
        """Say which request came."""
        self._say(f"[{index + 1}] arrives: {textwrap.shorten(answer.prompt, 64, placeholder=' ...')}")

    def moved(self, index: int, answer: Answer) -> None:
        """Say how it ended, when it did."""
        if answer.finish_reason is not None:
            self._say(f"[{index + 1}] ends ({answer.finish_reason}) after {len(answer.token_ids)} tokens")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class CountBoard(Board):
    """One progress bar over all requests, for runs whose text is not the point."""

    def __init__(self, progress: ProgressReporter, label: str, num_requests: int) -> None:
        self._progress = progress
        self._label = label
        self._num_requests = num_requests

    def __enter__(self) -> Self:
        self._progress.start(self._label, self._num_requests, "requests")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.finish()

    def arrived(self, index: int, answer: Answer) -> None:
        """Nothing to show."""

    def moved(self, index: int, answer: Answer) -> None:
        """Count the request when it has ended."""
        if answer.finish_reason is not None:
            self._progress.advance(1)
