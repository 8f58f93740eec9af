"""Errors in the words of the command line: a setting is named by its option, as the user types it.

Settings are checked by the configs, which know fields and no options. An option's parameter has the name of the field
that it sets, so what a command's parameters are called says how to translate. Called by `cli.commands`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ostinato.errors import OstinatoError

__all__ = ["name_options"]


def name_options(error: OstinatoError, parameters: Iterable[Any]) -> None:
    """Put options for fields in what ``error`` says, in place: its traceback stays. That is its message, its fix and,
    of its context, ``field`` and ``expected``.

    A name of several words is unmistakable, and in quotes it is that of a file. One of a single word (``tokens``) may
    be just a word: it is taken for a field where the error says so (context ``field``), at its first mention in the
    message and where the fix is to set it. A text that is given to a name (``device='cpu'``) is unmistakable too, and
    is told as it is typed: ``--device cpu``.

    Args:
        parameters: of the command that raised, as click has them.
    """
    options = {p.name: option for p in parameters if (option := _long(p.opts)) is not None}
    field = error.context.get("field")
    for name, option in options.items():
        for word in {name, option.removeprefix("--").replace("-", "_")}:  # some parameters have another
            _change(error, partial(_typed, name=word, option=option))
        if "_" in name:
            _change(error, partial(_replaced, name=name, option=option))
        elif name == field:
            error.message = _replaced(error.message, name, option, most=1)
            error.fix = error.fix.replace(f"set {name} accordingly", f"set {option} accordingly")
    if field in options:
        error.context["field"] = options[field]


def _long(spellings: Iterable[str]) -> str | None:
    """The option's long spelling; None for an argument."""
    return next((spelling for spelling in spellings if spelling.startswith("--")), None)


def _change(error: OstinatoError, change: Callable[[str], str]) -> None:
    error.message, error.fix = change(error.message), change(error.fix)
    if isinstance(expected := error.context.get("expected"), str):
        error.context["expected"] = change(expected)


def _typed(text: str, name: str, option: str) -> str:
    """``text`` with ``option value`` for ``name='value'``."""
    return re.sub(rf"(?<![\w./'\"-]){re.escape(name)}=(['\"])([\w.:/-]+)\1", rf"{option} \2", text)


def _replaced(text: str, name: str, option: str, *, most: int = 0) -> str:
    """``option`` for ``name``, ``most`` times or always; not in quotes, a path, another option or a longer name."""
    return re.sub(rf"(?<![\w./'\"-]){re.escape(name)}(?![\w/-]|\.\w)", option, text, count=most)
