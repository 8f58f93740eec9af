"""Where prompts come from, and which ones cannot be sent."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from ostinato.cli.prompts import prompt_error, read_prompts
from ostinato.errors import ConfigError


def written(folder: Path, data: bytes) -> str:
    file = folder / "prompts.txt"
    file.write_bytes(data)
    return str(file)


def test_options_come_first_and_are_kept_as_they_are(tmp_path: Path) -> None:
    file = written(tmp_path, b"from a file\n")
    assert read_prompts(["  given ", ""], file) == ["  given ", "", "from a file"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo", ["one", "two"]),
        (b"one\n\n  \ntwo\n\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\n", ["one"]),
        (b"  indented \n", ["  indented "]),
        ("a\u2028b\x0bc\n".encode(), ["a\u2028b\x0bc"]),
        ("grüße 你好\n".encode(), ["grüße 你好"]),
    ],
)
def test_one_prompt_a_line(tmp_path: Path, data: bytes, lines: list[str]) -> None:
    assert read_prompts([], written(tmp_path, data)) == lines


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert read_prompts([], "-") == ["one", "two"]


@pytest.mark.parametrize("data", [b"", b"\n \n\t\n"])
def test_a_file_without_a_prompt(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigError, match="only blank lines"):
        read_prompts([], written(tmp_path, data))


def test_no_prompt_at_all() -> None:
    with pytest.raises(ConfigError, match="no --prompt was given"):
        read_prompts([], None)


@pytest.mark.parametrize("bad", [b"bad \xff", b"\xff\xfe", b"\xe4\xbd", b"\xed\xa0\x80"])
def test_a_line_that_is_not_utf8_is_that_prompts_error_alone(tmp_path: Path, bad: bytes) -> None:
    first, second, third = read_prompts([], written(tmp_path, b"one\n" + bad + b"\nthree"))
    assert (first, second, third) == ("one", os.fsdecode(bad), "three"), "as an option's bytes arrive"
    error = prompt_error(second)
    assert error is not None and "not UTF-8" in error.message
    assert prompt_error(first) is prompt_error(third) is None


@pytest.mark.parametrize("name", ["missing.txt", ".", "nul\0byte", "missing/deeper.txt"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the prompts from"):
        read_prompts([], f"{tmp_path}/{name}")


@pytest.mark.parametrize("prompt", ["", " ", "\n\t", "caf\udce9"])
def test_a_prompt_that_no_model_can_be_sent(prompt: str) -> None:
    error = prompt_error(prompt)
    assert error is not None
    assert error.fix


@pytest.mark.parametrize("prompt", ["a", " a ", "你好", "\N{GRINNING FACE}", "a\0b"])
def test_a_prompt_that_can_be_sent(prompt: str) -> None:
    assert prompt_error(prompt) is None
