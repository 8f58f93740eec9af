"""Outputs that fail: a full disk, a pipe whose reader has gone, a closed descriptor."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ostinato.cli.app import main
from ostinato.cli.watched_output import watched_output

COMMANDS = {
    "help": ["--help"],  # typer's own console
    "held_back": ["errors", "OST100"],
    "large": ["errors"],
    "error_as_json": ["errors", "nothing", "--json"],
    "tables": ["plan", "--histogram", "steps.json"],  # rich
}
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "steps.json").write_text('{"decode": {"3": 10, "29": 2}}', encoding="utf-8")
    return tmp_path


@contextmanager
def pipe_without_reader() -> Iterator[int]:
    reads, writes = os.pipe()
    os.close(reads)
    yield writes
    os.close(writes)


def run(
    args: list[str], folder: Path, *, stdout: int, stderr: int = subprocess.PIPE, unbuffered: bool = False
) -> tuple:
    """Exit code and standard error. Python's development mode tells of streams that cannot be flushed at the end."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1" if unbuffered else "", "PYTHONDEVMODE": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "ostinato", *args]
    done = subprocess.run(command, cwd=folder, stdout=stdout, stderr=stderr, text=True, env=environment, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_a_reader_that_has_gone_ends_a_command_quietly(folder: Path, args: list[str]) -> None:
    with pipe_without_reader() as pipe:
        assert run(args, folder, stdout=pipe) == (141, "")


@needs_full
@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_a_full_disk_is_a_typed_error(folder: Path, args: list[str]) -> None:
    with FULL.open("w") as full:
        code, err = run(args, folder, stdout=full.fileno())
    assert code == 2
    assert err.splitlines() == [
        "error OST100: standard output cannot be written: No space left on device",
        "  fix: send it to a file or pipe that takes it",
    ]


@needs_full
def test_unbuffered_streams_fail_alike(folder: Path) -> None:
    with pipe_without_reader() as pipe, FULL.open("w") as full:
        assert run(["errors"], folder, stdout=pipe, unbuffered=True) == (141, "")
        code, err = run(["errors"], folder, stdout=full.fileno(), unbuffered=True)
        assert code == 2 and "No space left" in err and "Traceback" not in err


@needs_full
def test_errors_that_cannot_be_told_keep_the_exit_code(folder: Path) -> None:
    with pipe_without_reader() as pipe, FULL.open("w") as full:
        for args in (["errors"], ["errors", "nothing"]):
            assert run(args, folder, stdout=full.fileno(), stderr=full.fileno())[0] == 2
            assert run(args, folder, stdout=pipe, stderr=pipe)[0] == 141, "2>&1 | head"


def test_a_closed_output_is_an_error(folder: Path) -> None:
    line = f'"{sys.executable}" -m ostinato errors >&-'
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    assert "standard output cannot be written: it is closed" in done.stderr


def test_what_was_held_back_is_written_and_the_streams_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with pytest.raises(SystemExit) as stopped:
            main(["errors", "OST100"])
        assert stopped.value.code == 0
        assert sys.stdout is file
        assert (tmp_path / "out").read_text(encoding="utf-8").startswith("OST100  ConfigError")


def test_a_defect_is_told_although_the_output_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect() -> None:
        print("some text", flush=True)
        raise ZeroDivisionError

    def swallowing() -> None:
        try:
            defect()
        except BrokenPipeError:
            raise FileNotFoundError("ours") from None

    monkeypatch.setattr("ostinato.cli.commands.build_command", swallowing)
    with pipe_without_reader() as pipe, os.fdopen(os.dup(pipe), "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with pytest.raises(FileNotFoundError, match="ours"):
            main(["errors"])


def test_streams_of_others_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", mine)
    with watched_output() as output:
        assert sys.stdout is mine
        assert output.failure() is None
