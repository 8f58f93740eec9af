"""`Evidence`: what a benchmark found and how, written to disk after every row.

So a run that is cut short keeps what it has. The file is replaced whole, never half written, and whether it can be
written is found out before anything is measured. Called by `scenario` and the scenarios.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ostinato._whole_file import replace_file
from ostinato.bench.host_pace import PACE_NOTE
from ostinato.bench.naming import file_name, without_folders
from ostinato.errors import ConfigError

__all__ = ["Evidence", "output_path"]


@dataclass(kw_only=True)
class Evidence:
    """One benchmark's file.

    Attributes:
        path: where it goes; None keeps it in memory.
        plot_path: where a picture of it should go.
        say: told of each row and each failure as they come.
        pace: how fast the host is; None where rows do not tell.
    """

    bench: str
    date: str
    model: str
    hardware: str
    versions: dict[str, str]
    command: list[str]
    repeats: int
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    plot_path: Path | None = None
    say: Callable[[str], None] = lambda _text: None
    pace: Callable[[], float] | None = None
    _pace_before: float = 0.0

    def __post_init__(self) -> None:
        if self.pace is not None:
            self.note(PACE_NOTE)
            self._pace_before = self.pace()

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        if self.pace is not None:
            before, self._pace_before = self._pace_before, self.pace()
            row["host_pace_us"] = max(before, self._pace_before)
        self.rows.append(row)
        self.say(json.dumps(row))
        self.save()

    def fail(self, what: str, error: BaseException) -> None:
        """Keep the reason for which ``what`` has no rows."""
        self.failed[what] = f"{type(error).__name__}: {error}" if not str(error).startswith("[OST") else str(error)
        self.say(f"{what} failed: {self.failed[what]}")
        self.save()

    def skip(self, what: str, why: str) -> None:
        """Keep the reason for which ``what`` was not tried."""
        self.skipped[what] = why
        self.say(f"{what} skipped: {why}")
        self.save()

    def note(self, text: str) -> None:
        """Keep a remark on how the rows came about, once."""
        if text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """The document, without folders of this machine."""
        document = {
            "bench": self.bench,
            "date": self.date,
            "model": self.model.rstrip("/").rpartition("/")[2],
            "hardware": self.hardware,
            "versions": self.versions,
            "command": self.command,
            "config": self.config,
            "repeats": self.repeats,
            "notes": self.notes,
            "failed": self.failed,
            "skipped": self.skipped,
            **self.extra,
            "rows": self.rows,
        }
        cleaned: dict[str, Any] = without_folders(document)
        return cleaned

    def save(self) -> None:
        """Write the file, if there is one to write."""
        if self.path is None:
            return
        try:
            replace_file(self.path, json.dumps(self.to_dict(), indent=1) + "\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error


def output_path(given: str, *, bench: str, model: str, hardware: str, day: str, suffix: str = "json") -> Path:
    """The file that ``given`` means: itself, or a new file with the usual name in it where it is a folder.

    A folder is one that exists or ends with a slash. Tries to write there, so that a long run does not end in vain.

    Raises:
        ConfigError: nothing can be written there.
    """
    path = Path(given)
    try:
        if not given:
            raise FileNotFoundError("it has no name")
        if given.endswith(("/", os.sep)) or path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            path = _unused(path / file_name(bench, model, hardware, day, suffix=suffix))
        elif not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.parent}")
        elif path.exists() and not path.is_file():  # it is written again with each row
            raise OSError("it is no file")
        probe = path.with_name(f".{path.name}.part")
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise _unwritable(path if given else given, error) from error
    return path


def _unused(path: Path) -> Path:
    """``path``, or with _2, _3, ... what no earlier run of the day has taken."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return found


def _unwritable(given: Path | str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{given or repr(given)} cannot be written: {error}", fix="name a file or folder that can be written"
    )
