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
    options = {option for parameter in load_command(name).params for option in parameter.opts}
    assert "--json" in options


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
