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
        folder = path.parent
        why = ""
        if path.is_dir():
            why = "it is a folder"
        elif not folder.is_dir():
            why = f"there is no folder {folder}"
        elif not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
            why = "permission denied"
        if why:
            raise ConfigError(f"{path} cannot be written: {why}", fix="name a file that can be written")
        if path.resolve() in seen:
            raise ConfigError(f"--{seen[path.resolve()]} and --{option} name the same file", fix="name two files")
        seen[path.resolve()] = option
