"""Standard output, whatever its encoding: results for people and for programs. And where files are to go.

Text that a terminal's encoding lacks is shown escaped instead of ending the command. Called by the
commands that print what a model wrote.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import typer

from ostinato.errors import ConfigError

__all__ = ["be_lenient", "check_outputs", "print_json", "print_prompt", "print_text"]


def print_json(document: dict[str, Any]) -> None:
    """One JSON object, in ASCII, so that any encoding carries it."""
    typer.echo(json.dumps(document, indent=2))


def print_prompt(prompt: str) -> None:
    """The prompt as a heading (bold on a terminal)."""
    be_lenient()
    typer.secho(f"> {prompt}", bold=True)


def print_text(text: str) -> None:
    """What followed, and an empty line."""
    be_lenient()
    typer.echo(f"{text.strip()}\n")


def be_lenient() -> None:
    """Let standard output escape what its encoding cannot show."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def check_outputs(**paths: Path | None) -> None:
    """See that a file could be written at each of ``paths``, by option: before the work, and before any is written.

    Raises:
        ConfigError: at one of them it could not, or two of them are the same.
    """
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        why = _why_unwritable(path)
        if why:
            raise ConfigError(f"{path} cannot be written: {why}", fix="name a file that can be written")
        real = _real(path)
        if real in seen:
            raise ConfigError(f"--{seen[real]} and --{option} name the same file", fix="name two files")
        seen[real] = option


def _why_unwritable(path: Path) -> str:
    """Empty where nothing speaks against it, as `replace_file` writes."""
    if path.is_dir():
        return "it is a folder"
    is_there, real = path.exists(), _real(path)
    if is_there and not os.access(path, os.W_OK):
        return "permission denied"
    if is_there and not path.is_file():  # a pipe or a device, which stays
        return ""
    if real.is_symlink():
        return "its links go in a circle"
    if not real.parent.is_dir():
        return f"there is no folder {real.parent}"
    return "" if os.access(real.parent, os.W_OK | os.X_OK) else "permission denied"


def _real(path: Path) -> Path:
    """What a link leads to; `Path.resolve` raises no OSError for links in a circle."""
    return Path(os.path.realpath(path))
