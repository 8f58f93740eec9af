"""The registry of commands: every entry has its module and function, and help lists each one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from ostinato.cli.app import main
from ostinato.cli.commands import COMMANDS, load_command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert command.help, f"{name} has no docstring to show as help"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_json(name: str) -> None:
    assert "--json" in options_of(name)


def options_of(name: str) -> set[str]:
    return {option for parameter in load_command(name).params for option in parameter.opts}


RUNS_A_MODEL = [name for name in COMMANDS if {"--device", "--load-format"} & options_of(name)]
"""The doctor's target may be a model, which it loads; `plan` only reads a model's config."""
ARGUMENTS = {"doctor": ["no/such/model"], "bench": ["decode"]}


def test_commands_that_run_a_model_are_known_by_their_options() -> None:
    assert RUNS_A_MODEL == ["bench", "demo", "doctor", "explain", "generate", "inspect", "memory", "qualify"]


@pytest.mark.parametrize("name", RUNS_A_MODEL)
def test_every_command_that_runs_a_model_takes_mode_partition_and_compile(name: str) -> None:
    assert {"--mode", "--partition", "--compile"} <= options_of(name)


@pytest.mark.parametrize("option", ["mode", "partition", "compile"])
@pytest.mark.parametrize("name", RUNS_A_MODEL)
def test_no_command_that_runs_a_model_ignores_them(name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([name, *ARGUMENTS.get(name, []), f"--{option}", "gcc"])
    assert stopped.value.code == 2
    assert f"error OST101: unknown {option} 'gcc'" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_file_of_its_own(name: str) -> None:
    assert import_module(f"ostinato.cli.{name.replace('-', '_')}").__doc__


def test_help_lists_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert name in out
        assert summary.split()[0] in out


def test_help_of_a_command_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["errors", "--help"])
    assert "OST301" in capsys.readouterr().out


HELP = """
import sys
from ostinato.cli.app import main
try:
    main([sys.argv[1], "--help"])
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_no_torch(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, name], capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    assert f"ostinato.cli.{name.replace('-', '_')}" in imported
    assert not imported & {"torch", "tokenizers", "safetensors", "jinja2"}
