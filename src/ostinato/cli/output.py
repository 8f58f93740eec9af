"""Standard output, whatever its encoding: results for people and for programs.

Text that a terminal's encoding lacks is shown escaped instead of ending the command. Called by the
commands that print what a model wrote.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import typer

__all__ = ["be_lenient", "print_json", "print_prompt", "print_text"]


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
