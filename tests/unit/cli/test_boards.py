"""What is shown while the burst runs."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ostinato.cli.answers import Answer
from ostinato.cli.boards import CountBoard, LineBoard, LiveBoard, board_on
from ostinato.engine.request import FinishReason


def console(out: io.StringIO, *, is_terminal: bool, width: int = 100) -> Console:
    return Console(file=out, width=width, force_terminal=is_terminal, color_system=None)


def test_a_terminal_gets_the_live_table_and_a_pipe_gets_lines() -> None:
    assert isinstance(board_on(console(io.StringIO(), is_terminal=True), 1), LiveBoard)
    assert isinstance(board_on(console(io.StringIO(), is_terminal=False), 1), LineBoard)


def test_lines_say_who_arrives_and_how_each_ends() -> None:
    out = io.StringIO()
    answer = Answer(prompt="[b]why[/b] " + "so long " * 20)
    with LineBoard(console(out, is_terminal=False, width=20)) as board:
        board.arrived(2, answer)
        answer.token_ids += [1]
        board.moved(2, answer)
        answer.token_ids += [2]
        answer.finish_reason = FinishReason.STOP
        board.moved(2, answer)
    first, last = out.getvalue().splitlines()
    assert first.startswith("[3] arrives: [b]why[/b] so long")
    assert len(first) < 80
    assert last == "[3] ends (stop) after 2 tokens"


def shown(board: LiveBoard, width: int = 100) -> str:
    out = io.StringIO()
    console(out, is_terminal=False, width=width).print(board._draw())
    return out.getvalue()


def test_the_live_table_has_a_row_for_each_request_from_the_start() -> None:
    board = LiveBoard(console(io.StringIO(), is_terminal=True), 3)
    assert shown(board).count("waiting") == 3


def test_the_live_table_shows_the_end_of_a_long_answer() -> None:
    board = LiveBoard(console(io.StringIO(), is_terminal=True), 2)
    answer = Answer(prompt="one", text="beginning " + "word " * 50 + "\nend", token_ids=[1, 2, 3])
    board.arrived(0, answer)
    (line,) = [line for line in shown(board).splitlines() if "one" in line]
    assert "…" in line
    assert "beginning" not in line
    assert [cell.strip() for cell in line.split("│")][3:5] == ["3", "running"]
    assert line.split("│")[2].rstrip().endswith("word end")
    answer.finish_reason = FinishReason.LENGTH
    assert "done" in shown(board)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_live_table_keeps_one_line_for_each_request(width: int) -> None:
    board = LiveBoard(console(io.StringIO(), is_terminal=True, width=width), 2)
    board.arrived(0, Answer(prompt="prompt " * 30, text="text " * 300))
    lines = shown(board, width).splitlines()
    assert len(lines) == 7  # title, three of the head, two requests, the end
    assert max(map(len, lines)) <= width


def test_markup_in_a_prompt_or_an_answer_is_text() -> None:
    board = LiveBoard(console(io.StringIO(), is_terminal=True), 1)
    board.arrived(0, Answer(prompt="[bold]p", text="[/nonsense] [red]t"))
    assert "[bold]p" in shown(board)
    assert "[/nonsense] [red]t" in shown(board)


def test_the_live_table_goes_away_at_the_end() -> None:
    out = io.StringIO()
    with LiveBoard(console(out, is_terminal=True), 1) as board:
        board.arrived(0, Answer(prompt="one"))
    assert "one" in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K")  # its last line is erased


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.calls.append((label, total, unit))

    def advance(self, n: int) -> None:
        self.calls.append(n)

    def finish(self) -> None:
        self.calls.append("finish")


def test_the_count_moves_when_a_request_ends_and_is_closed_by_an_error() -> None:
    recorder = Recorder()
    answer = Answer(prompt="one")
    with pytest.raises(ZeroDivisionError), CountBoard(recorder, "again", 2) as board:
        board.arrived(0, answer)
        board.moved(0, answer)
        answer.finish_reason = FinishReason.STOP
        board.moved(0, answer)
        raise ZeroDivisionError
    assert recorder.calls == [("again", 2, "requests"), 1, "finish"]
