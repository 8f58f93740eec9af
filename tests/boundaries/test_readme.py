"""What README.md shows works: Python blocks run, and the commands in shell blocks exist.

A Python block is run as a script in a fresh interpreter. The comment ``<!-- test: slow -->`` on the line
before a block gives it the `slow` mark (it fetches a model, say). Shell blocks are not run: their `make`
targets are looked up in the Makefile and their `ostinato` commands in the registry.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?P<slow><!-- test: slow -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", re.DOTALL)


def python_blocks() -> list[object]:
    return [
        pytest.param(
            match["code"],
            marks=[pytest.mark.slow] if match["slow"] else [],
            id=f"line-{README[: match.start()].count(chr(10)) + 1}",
        )
        for match in BLOCK.finditer(README)
        if match["language"] == "python"
    ]


def shell_lines() -> list[str]:
    blocks = [match["code"] for match in BLOCK.finditer(README) if match["language"] in {"bash", "sh", "console"}]
    lines = [line.partition("#")[0].strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("code", python_blocks())
def test_python_block_runs(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", shell_lines())
def test_shell_line_names_something_that_exists(line: str) -> None:
    program, *arguments = line.split()
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
        assert set(arguments) <= targets
    elif program == "ostinato":
        assert arguments[0] in {*COMMANDS, "--help", "--version"}
    else:
        assert program in {"pip", "git", "cd"}


def test_the_readme_has_both_kinds_of_block() -> None:
    assert python_blocks()
    assert shell_lines()
