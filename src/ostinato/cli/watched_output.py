"""Standard output and error that note why they failed: a full disk, a pipe whose reader has gone.

Rich and typer each make something of their own of a broken pipe, and Python does once more as it ends. So a failure
is noted where bytes leave the process, whoever catches it then, and what follows it is dropped. Called by
`ostinato.cli.app`; imports the standard library only.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

__all__ = ["WatchedOutput", "watched_output"]


class WatchedOutput:
    """The streams that are watched, by name, and what became of them."""

    def __init__(self) -> None:
        self._watched: dict[str, tuple[TextIO, _Raw]] = {}

    def watch(self, name: str, stream: TextIO | None) -> TextIO | None:
        """What to write to instead of ``stream``; itself if it is not the process's own (of a test, a notebook)."""
        buffer: Any = getattr(stream, "buffer", None)
        file = getattr(buffer, "raw", buffer)  # unbuffered there is no other
        if stream is not None and not (isinstance(stream, io.TextIOWrapper) and isinstance(file, io.FileIO)):
            return stream
        raw = _Raw(file)
        is_unbuffered = file is buffer
        below: Any = raw if is_unbuffered else io.BufferedWriter(raw)
        text = io.TextIOWrapper(
            below,
            encoding=getattr(stream, "encoding", "utf-8"),
            errors=getattr(stream, "errors", None),
            line_buffering=getattr(stream, "line_buffering", False),
            write_through=is_unbuffered,
        )
        self._watched[name] = (text, raw)
        return text

    def flush(self) -> None:
        """Write what is held back; a failure is noted."""
        for text, _ in self._watched.values():
            with suppress(OSError):
                text.flush()

    def failure(self) -> tuple[str, OSError] | None:
        """The first stream that failed, and why."""
        return next(((name, raw.error) for name, (_, raw) in self._watched.items() if raw.error is not None), None)


@contextmanager
def watched_output() -> Iterator[WatchedOutput]:
    """Watch both streams; in the end all is flushed and they are as they were, with nothing for Python to flush."""
    before = sys.stdout, sys.stderr
    output = WatchedOutput()
    sys.stdout = output.watch("standard output", sys.stdout)  # type: ignore[assignment]
    if sys.stderr is not None:  # else nobody wants to be told
        sys.stderr = output.watch("standard error", sys.stderr)  # type: ignore[assignment]
    try:
        yield output
    finally:
        output.flush()
        sys.stdout, sys.stderr = before


class _Raw(io.RawIOBase):
    """Where the bytes of a stream leave; without a file, one that was closed before the start."""

    def __init__(self, file: io.FileIO | None) -> None:
        self._file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._file is not None and self._file.isatty()

    def fileno(self) -> int:
        return super().fileno() if self._file is None else self._file.fileno()

    def write(self, data: Any) -> int:
        if self.error is not None:
            return len(data)
        try:
            if self._file is None:
                raise OSError(errno.EBADF, "it is closed")
            num_bytes = self._file.write(data)
            if num_bytes is None:  # a pipe that was set not to wait for its reader
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        except OSError as error:
            self.error = error
            raise
        return num_bytes
