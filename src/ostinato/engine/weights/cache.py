"""The folder where converted models are kept: ``$OSTINATO_CACHE``, else ``~/.cache/ostinato``.

An entry appears whole or not at all: it is written in a staging folder beside it and renamed. Any
number of processes may do so at once; the first wins and the others take its entry. Called by the
sources that convert. Leaves the Hugging Face hub's own cache alone.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostinato.engine.text.json_file import read_json_object_if_present
from ostinato.errors import CheckpointError, UnwritableCacheError

# Raise it when the converter writes something else: older entries are then made anew.
CONVERTER_VERSION = 1
_MARKER = "ostinato.json"
_STAGING_PREFIX = ".staging-"
_ABANDONED_AFTER_SECONDS = 24 * 3600
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST}


def cache_root(cache_dir: Path | None = None) -> Path:
    """The cache folder; it may not exist yet.

    Raises:
        UnwritableCacheError: it lies in the home folder of a user who has none.
    """
    if cache_dir is not None:
        return Path(cache_dir)
    given = os.environ.get("OSTINATO_CACHE") or "~/.cache/ostinato"
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise UnwritableCacheError(
            f"the cache folder {given} has no place: {error}", fix="set OSTINATO_CACHE to a folder that you can write"
        ) from error


class ModelCache:
    """Converted models under ``<root>/models``, one folder each."""

    def __init__(self, root: Path) -> None:
        self._models = root / "models"

    def entry_path(self, name: str) -> Path:
        """Where the entry called ``name`` lies or would lie."""
        return self._models / name.replace("/", "--")

    def find(self, name: str) -> Path | None:
        """The entry's folder, when a converter of this version has made it. Never writes."""
        folder = self.entry_path(name)
        try:
            marker = read_json_object_if_present(folder / _MARKER)
        except (CheckpointError, OSError):  # OSError: a path too long, or through a folder that is closed to us
            return None  # an unreadable marker is no entry; publishing replaces it, or says why it cannot
        return folder if marker.get("converter") == CONVERTER_VERSION else None

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A new empty folder on the cache's file system; whatever is left in it goes at the end.

        Raises:
            UnwritableCacheError: the folder, or something in it, cannot be written.
        """
        try:
            self._models.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            folder = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=self._models))
        except OSError as error:  # any: nothing but the cache is touched, and /proc answers "not found"
            raise self._unwritable(error) from error
        try:
            with self._writing():
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, staged: Path, name: str, *, origin: str) -> Path:
        """Make the folder ``staged`` the entry ``name``, unless another process was first.

        Args:
            origin: what it was made from, noted in the entry for people to read.

        Raises:
            UnwritableCacheError: the entry cannot be written.
        """
        with self._writing():
            marker = {"converter": CONVERTER_VERSION, "model": name, "origin": origin}
            (staged / _MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
            target = self.entry_path(name)
            while True:
                try:
                    os.replace(staged, target)
                    return target
                except OSError as error:
                    # A folder cannot replace one that holds files: someone was first, or an old entry is in the way.
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or not target.exists():
                        raise
                if self.find(name) is not None:
                    return target
                self._retire(target)

    def _retire(self, target: Path) -> None:
        """Take an outdated entry out of the way; readers that have it open keep their files."""
        grave = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=self._models))
        try:
            os.replace(target, grave / target.name)
        except FileNotFoundError:
            pass  # another process has just done the same
        finally:
            shutil.rmtree(grave, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        """Remove what killed runs have left; young folders may belong to live ones."""
        for folder in self._models.glob(_STAGING_PREFIX + "*"):
            try:
                age_seconds = time.time() - folder.stat().st_mtime
            except FileNotFoundError:
                continue
            if age_seconds > _ABANDONED_AFTER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:  # of a file that is read for the entry, say
                raise
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UnwritableCacheError:
        return UnwritableCacheError(
            f"cannot write the cache {self._models}: {error}",
            fix="free some space or set OSTINATO_CACHE to a folder that you can write",
        )
