"""``ostinato errors``: what an error code means, from the docstrings of `ostinato.errors`.

Also the source of the errors page of the documentation (tools/errors_page.py). Loads no torch.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

import ostinato.errors
from ostinato.errors import OstinatoError, UnknownNameError

__all__ = ["ErrorEntry", "entries", "errors"]


@dataclass(frozen=True, kw_only=True)
class ErrorEntry:
    """One class of the exception tree, as text."""

    code: str
    name: str
    parent: str
    meaning: str


def entries() -> list[ErrorEntry]:
    """All errors in the order of their codes; the meaning is the docstring's first paragraph."""
    classes = [getattr(ostinato.errors, name) for name in ostinato.errors.__all__]
    found = [
        ErrorEntry(
            code=cls.code,
            name=cls.__name__,
            parent=cls.__mro__[1].__name__,
            meaning=" ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()),
        )
        for cls in classes
        if issubclass(cls, OstinatoError)
    ]
    return sorted(found, key=lambda entry: entry.code)


def errors(
    code: Annotated[str | None, typer.Argument(help="A code such as OST301; none lists them all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain an error code, or list them all."""
    chosen = entries()
    if code is not None:
        known = [entry.code for entry in chosen]
        if code.upper() not in known:
            raise UnknownNameError.of("error code", code.upper(), known)
        chosen = [entry for entry in chosen if entry.code == code.upper()]
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in chosen], indent=2))
        return
    for entry in chosen:
        typer.echo(f"{entry.code}  {entry.name} ({entry.parent}): {entry.meaning}")
