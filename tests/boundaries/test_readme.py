"""What README.md shows works: Python blocks run, and so does each `ostinato` line of the shell blocks.

A Python block is run as a script in a fresh interpreter. The comment ``<!-- test: slow -->`` on the line
before a block gives it the `slow` mark (it fetches a model, say). `ostinato` lines run as they stand, in a folder
with the files that they name; those that load a model are given a tiny one on the CPU, so that nothing is fetched.
What would take minutes is looked up only, and named in `LOOKED_UP`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.cli.app import main
from ostinato.cli.commands import load_command
from ostinato.telemetry import JsonLinesSink, KeysPlanned, StepDispatched
from ostinato.testing.tiny_models import write_tiny_model

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


LOOKED_UP = {
    "make demo": "makes an environment and fetches a model",
    "make test": "makes an environment and runs this test",
}
"""Lines that are not run, and why."""
FACTORY = """
import torch

def factory():
    return torch.nn.Linear(8, 8), (torch.randn(4, 8),)
"""
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00,120,8
2023-11-16 18:00:01,40,16
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files that the README's commands name, and a model."""
    write_tiny_model(tmp_path / "tiny")
    (tmp_path / "model.py").write_text(FACTORY)
    (tmp_path / "requests.csv").write_text(TRACE)
    with JsonLinesSink(tmp_path / "events.jsonl") as sink:
        sink.emit(KeysPlanned(keys=("FULL tokens=4",), largest_tokens=4))
        sink.emit(
            StepDispatched(
                runtime_mode="FULL",
                bucket="4",
                reason="PADDED",
                live_tokens=3,
                padded_tokens=4,
                key="FULL tokens=4",
                launch_seconds=0.1,
            )
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("ostinato ")])
def test_ostinato_line_runs(line: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, command, *arguments = shlex.split(line)
    options = {option for parameter in load_command(command).params for option in parameter.opts}
    if {"--model", "--device"} <= options:  # it opens an engine
        arguments += ["--model", str(folder / "tiny"), "--device", "cpu"]
    with pytest.raises(SystemExit) as stopped:
        main([command, *arguments])
    out, err = capfd.readouterr()
    assert stopped.value.code in (None, 0), err
    assert out.strip()
    if "results/" in arguments:
        assert list((folder / "results").glob(f"{arguments[0]}_tiny_*.json"))


@pytest.mark.parametrize("line", [line for line in shell_lines() if not line.startswith("ostinato ")])
def test_any_other_line_is_looked_up_for_a_reason(line: str) -> None:
    assert line in LOOKED_UP
    program, *arguments = line.split()
    assert program == "make"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(arguments) <= set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))


def test_the_readme_has_both_kinds_of_block() -> None:
    assert python_blocks()
    assert shell_lines()
    assert set(LOOKED_UP) <= set(shell_lines())
