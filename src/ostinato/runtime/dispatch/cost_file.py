"""Files of measured costs: whole or not at all, and only where they were measured. No torch.

A file holds what its times hold for (``origin``: hardware, model, dtype, versions), one `CostTable` by name for each
way to make piecewise graphs that was measured there and, for people, the best way at each size. Called by the engine,
and by users of the runtime.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ostinato._whole_file import replace_file
from ostinato.errors import ConfigError, ForeignCostsError
from ostinato.runtime.dispatch.costs import CostTable, compare_costs

__all__ = ["check_costs_path", "parse_costs", "read_costs", "write_costs"]

_FORMAT: Final = 2
"""What a file's times mean. 1, where a file does not say: of each step from an idle device to an idle one. 2: of steps
one right behind the other, unless they were measured without ``overlap``."""


def read_costs(path: Path | str, *, origin: Mapping[str, str]) -> dict[str, CostTable]:
    """All tables of the file at ``path``, by name.

    Args:
        origin: what the costs must hold for: the facts of this device, model and installation, by name.

    Raises:
        ConfigError: the file cannot be read, or is no such file.
        ForeignCostsError: it was measured elsewhere, or its times mean something else ("format"); the message names
            the first fact that differs, there and here.
    """
    document = _read(Path(path))
    found, tables = _parts(document, path)
    fix = "name another file, and it is measured and written here"
    _check_format(document, path, fix)  # first, and no fact among the others: one of them may have this name
    for fact in {**origin, **found}:
        if found.get(fact) != origin.get(fact):
            raise _foreign(path, fact, found.get(fact), origin.get(fact), fix)
    return _tables(tables, path)


def parse_costs(document: Mapping[str, Any], *, name: Path | str) -> tuple[dict[str, str], dict[str, CostTable]]:
    """What the costs in ``document``, the contents of such a file, hold for, and all its tables by name.

    Whoever asks judges where they hold; dispatch itself takes `read_costs`.

    Raises:
        ConfigError: it is no such file; the message calls it ``name``.
        ForeignCostsError: its times mean something else ("format").
    """
    origin, tables = _parts(document, name)
    _check_format(document, name, "measure again, into a new file: `ostinato explain --measure --costs FILE`")
    return origin, _tables(tables, name)


def write_costs(path: Path | str, tables: Mapping[str, CostTable], *, origin: Mapping[str, str]) -> None:
    """Write ``tables`` to ``path``, with today's date; an older file is replaced at once and whole.

    Raises:
        ConfigError: it cannot be written.
    """
    path = Path(path)
    document = {
        "format": _FORMAT,
        "origin": dict(origin),
        "date": datetime.date.today().isoformat(),
        "tables": {name: table.to_dict() for name, table in tables.items()},
        "best": [{name: row[name] for name in ("batches", "tokens", "best")} for row in compare_costs(tables)],
    }
    try:
        replace_file(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise _unwritable(path, error) from error


def check_costs_path(path: Path | str) -> None:
    """Raise `ConfigError` if no file could be written at ``path``: better told before minutes of measuring."""
    path = Path(path)
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unwritable(path, "it is a folder" if path.is_dir() else f"no files can be made in {path.parent}")


def _parts(document: Mapping[str, Any], path: Path | str) -> tuple[dict[str, str], dict[str, Any]]:
    origin, tables = document.get("origin"), document.get("tables")
    if not isinstance(origin, dict) or not isinstance(tables, dict):
        raise ConfigError(
            f"{path} is no file of measured costs: it has no origin and tables", fix="name another file, or remove it"
        )
    return origin, tables


def _check_format(document: Mapping[str, Any], path: Path | str, fix: str) -> None:
    there = repr(document.get("format", 1))  # told from a string of the same look, and from 2.0
    if there != repr(_FORMAT):
        raise _foreign(path, "format", there, repr(_FORMAT), fix)


def _foreign(path: Path | str, fact: str, there: object, here: object, fix: str) -> ForeignCostsError:
    return ForeignCostsError(
        f"{path} was measured with {fact} {there or 'unknown'}, and here it is {here or 'unknown'}",
        fix=fix,
        expected=here,
        got=there,
    )


def _tables(tables: Mapping[str, Any], path: Path | str) -> dict[str, CostTable]:
    try:
        return {name: CostTable.from_dict(entries) for name, entries in tables.items()}
    except ConfigError as error:
        raise ConfigError(
            f"{path} is no file of measured costs: {error.message}",
            fix="name another file, or remove it",
            **error.context,
        ) from error


def _unwritable(path: Path, why: object) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {why}", fix="name a file in a folder that can be written")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="name a readable JSON file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", fix="mend the file, or remove it") from error
    return document if isinstance(document, dict) else {}
