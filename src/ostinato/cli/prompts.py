"""Prompts as the command line gets them: from options, from a file or from standard input.

A source that cannot be read fails the command (`ConfigError`). A prompt that cannot be answered is one
request's error, found by `prompt_error`, so that the others still run. Called by `generate` and `demo`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["STANDARD_INPUT", "has_chat_template", "prompt_error", "read_prompts"]

STANDARD_INPUT = "-"


def read_prompts(given: Sequence[str], file: str | None) -> list[str]:
    """The prompts of ``given``, then those of ``file``: one a line, UTF-8, blank lines left out.

    Bytes that are not UTF-8 become lone surrogates, as Python makes of those of the command line, and
    `prompt_error` finds them: one such line harms no other.

    Args:
        given: prompts written on the command line, kept as they are.
        file: a path, or ``"-"`` for standard input.

    Raises:
        ConfigError: there is no prompt at all, or ``file`` cannot be read.
    """
    prompts = list(given)
    if file is not None:
        prompts += _lines(_read(file))
    if not prompts:
        found = "no --prompt was given" if file is None else f"{_name(file)} has only blank lines"
        raise ConfigError(
            f"there is no prompt: {found}", fix='use --prompt "...", or --prompt-file with one on each line'
        )
    return prompts


def prompt_error(prompt: str) -> RequestError | None:
    """Why this prompt cannot be sent to any model, or None."""
    if not prompt.strip():
        return RequestError("the prompt is empty", fix="write at least one word", got=repr(prompt))
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:  # bytes that are no UTF-8 arrive as lone surrogates
        return RequestError("the prompt is not UTF-8", fix="convert it to UTF-8", position=error.start)
    return None


def has_chat_template(llm: LLM) -> bool:
    """Whether prompts are sent as chat messages when nobody said how: if the model has a template for them."""
    return llm.tokenizer is not None and llm.tokenizer.has_chat_template


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read the prompts from {_name(file)}: {reason}", fix="check the path") from error


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8-sig", errors="surrogateescape")  # -sig: some editors write a byte order mark
    # Not splitlines(), which also splits at characters that may stand inside a prompt.
    return [line for line in (raw.removesuffix("\r") for raw in text.split("\n")) if line.strip()]


def _name(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else file
