"""Progress on standard error: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from ostinato.cli.progress import BarProgress, LineProgress, progress_on_stderr


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def terminal(out: io.StringIO) -> Console:
    return Console(file=out, force_terminal=True, width=100, color_system=None)


def untimed(text: str) -> str:
    return re.sub(r"\d+\.\d s$", "T s", text, flags=re.MULTILINE)


def work(progress: BarProgress | LineProgress, label: str, total: int | None, unit: str, done: int) -> None:
    progress.start(label, total, unit)
    progress.advance(done)
    progress.finish()


@pytest.mark.parametrize(
    ("unit", "done", "line"),
    [
        ("tensors", 272, "load: 272 tensors in T s\n"),
        ("bytes", 3 << 19, "load: 1.5 MiB in T s\n"),
        ("tokens", 12345, "load: 12,345 tokens in T s\n"),
        ("prompts", 0, "load: T s\n"),
    ],
)
def test_a_log_gets_one_line_at_the_end(out: io.StringIO, unit: str, done: int, line: str) -> None:
    progress = LineProgress(Console(file=out, width=20))
    progress.start("load", None, unit)
    progress.advance(done)
    assert out.getvalue() == ""
    progress.finish()
    assert untimed(out.getvalue()) == line


def test_a_log_line_is_not_wrapped_and_not_markup(out: io.StringIO) -> None:
    label = "fetch [bold]org/model[/bold] from a place with a long name"
    work(LineProgress(Console(file=out, width=20)), label, 1, "files", 1)
    assert untimed(out.getvalue()) == f"{label}: 1 files in T s\n"


@pytest.mark.parametrize(
    ("total", "unit", "done", "shown"),
    [
        (20, "graphs", 20, "20/20 graphs"),
        (20, "graphs", 7, "7/20 graphs"),
        (2_000_000, "bytes", 1_000_000, "1.0/2.0 MB"),
        (None, "prompts", 0, "0:00:00"),
    ],
)
def test_a_bar_stays_with_its_count(out: io.StringIO, total: int | None, unit: str, done: int, shown: str) -> None:
    work(BarProgress(terminal(out)), "capture", total, unit, done)
    last_frame = [line for line in out.getvalue().splitlines() if "capture" in line][-1]
    assert shown in last_frame


@pytest.mark.parametrize("kind", [BarProgress, LineProgress])
def test_finish_may_be_called_at_any_time(out: io.StringIO, kind: type[BarProgress] | type[LineProgress]) -> None:
    progress = kind(terminal(out))
    progress.finish()
    progress.advance(1)
    work(progress, "a", 1, "x", 1)
    shown = out.getvalue()
    progress.finish()
    assert out.getvalue() == shown


@pytest.mark.parametrize("kind", [BarProgress, LineProgress])
def test_a_new_piece_of_work_ends_the_one_before(
    out: io.StringIO, kind: type[BarProgress] | type[LineProgress]
) -> None:
    progress = kind(terminal(out))
    progress.start("first", 2, "x")
    progress.start("second", 2, "x")
    progress.finish()
    assert "first" in out.getvalue()
    assert "second" in out.getvalue()


def test_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = progress_on_stderr()
    assert isinstance(progress, LineProgress)
    progress.start("load", 1, "files")
    progress.finish()
    assert capsys.readouterr().err.startswith("load: ")


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it as "this is a terminal"
    assert isinstance(progress_on_stderr(), BarProgress)
