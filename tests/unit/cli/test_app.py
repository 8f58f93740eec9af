"""Exit codes and messages of the command line's entry point."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import typer

from ostinato.cli import commands
from ostinato.cli.app import main
from ostinato.errors import InputSpecError

CommandThat = Callable[[BaseException | None], None]


@pytest.fixture
def command_that(monkeypatch: pytest.MonkeyPatch) -> CommandThat:
    """Register a command `probe` that raises what it is given."""

    def register(failure: BaseException | None) -> None:
        def probe(as_json: bool = typer.Option(False, "--json")) -> None:
            if failure is not None:
                raise failure

        module = ModuleType("ostinato.cli.probe")
        module.probe = probe  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ostinato.cli.probe", module)
        monkeypatch.setitem(commands.COMMANDS, "probe", "A command for a test.")

    return register


def exit_code(*args: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(args)
    code = stopped.value.code
    return code if isinstance(code, int) else 0


def test_success_is_zero(command_that: CommandThat) -> None:
    command_that(None)
    assert exit_code("probe") == 0


def test_our_error_is_two_and_readable(command_that: CommandThat, capsys: pytest.CaptureFixture[str]) -> None:
    command_that(InputSpecError("wrong width", fix="pass 64 columns", slot="x", got=63))
    assert exit_code("probe") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["error OST302: wrong width", "  where: slot=x, got=63", "  fix: pass 64 columns"]


def test_our_error_is_one_json_object_with_json(command_that: CommandThat, capsys: pytest.CaptureFixture[str]) -> None:
    command_that(InputSpecError("wrong width", fix="pass 64 columns", got=63))
    assert exit_code("probe", "--json") == 2
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "error": {
            "code": "OST302",
            "type": "InputSpecError",
            "message": "wrong width",
            "fix": "pass 64 columns",
            "context": {"got": "63"},
        }
    }


def test_the_traceback_is_shown_on_request(
    command_that: CommandThat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_that(InputSpecError("wrong width"))
    monkeypatch.setenv("OSTINATO_TRACEBACK", "1")
    assert exit_code("probe") == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_is_130(command_that: CommandThat) -> None:
    command_that(KeyboardInterrupt())
    assert exit_code("probe") == 130


def test_an_interrupt_before_any_command_is_130_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "build_command", interrupted)
    assert exit_code("--help") == 130


def test_a_missing_extra_is_named(command_that: CommandThat, capsys: pytest.CaptureFixture[str]) -> None:
    command_that(ModuleNotFoundError("No module named 'safetensors'", name="safetensors.torch"))
    assert exit_code("probe") == 2
    assert "pip install 'ostinato[engine]'" in capsys.readouterr().err


def test_a_missing_command_line_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ostinato.cli.commands", None)
    monkeypatch.delitem(sys.modules, "ostinato.cli.commands")
    monkeypatch.setitem(sys.modules, "typer", None)
    assert exit_code("--help") == 2
    assert "pip install 'ostinato[cli]'" in capsys.readouterr().err


def test_a_defect_of_ours_is_not_hidden(command_that: CommandThat) -> None:
    command_that(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        main(["probe"])


def test_a_missing_module_of_ours_is_not_taken_for_an_extra(command_that: CommandThat) -> None:
    command_that(ModuleNotFoundError("No module named 'ostinato.gone'", name="ostinato.gone"))
    with pytest.raises(ModuleNotFoundError):
        main(["probe"])


def test_bad_usage_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("no-such-command") == 2
    assert "no-such-command" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("ostinato ")
