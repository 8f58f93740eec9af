"""`JsonLinesSink`: events as lines of JSON in a file, one object each, and `read_json_lines`, which adds them up again.

Steps come too fast for a line each: they are added up and written once an interval, as `DispatchCounters.snapshot`
tells them, unless every step is asked for. A thread of the sink's own writes, so that no step waits for a disk.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import TracebackType
from typing import IO, Any, Self

from ostinato._version import __version__
from ostinato.errors import ClosedError, ConfigError
from ostinato.telemetry import events
from ostinato.telemetry.counters import DispatchCounters
from ostinato.telemetry.events import Event, StepEvent
from ostinato.telemetry.tally import Tally

__all__ = ["JsonLinesSink", "read_json_lines"]

logger = logging.getLogger("ostinato")

_MOST = 2**63
_NUMBERS = frozenset({"int", "int | None", "float"})
_OPENED = "Opened"
_STEPS = "Steps"
_DROPPED = "Dropped"
_KINDS: dict[str, type[Event]] = {name: getattr(events, name) for name in events.__all__}


class JsonLinesSink:
    """Writes ``{"time": seconds since 1970, "event": name, ...fields}``. Use as a context manager, or close it.

    Args:
        target: a path, to which lines are appended, or a text file, which stays the caller's to close.
        interval_s: how often steps are added up and what waits is written. Anything but a step is written at once.
        every_step: write each step's events too, instead of their sums.
        capacity: events that may wait; what comes on top is dropped and counted.

    Raises:
        ConfigError: the path cannot be written, or an interval or capacity that is none.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | IO[str],
        *,
        interval_s: float = 1.0,
        every_step: bool = False,
        capacity: int = 10_000,
    ) -> None:
        if not isinstance(interval_s, int | float) or not 0 < interval_s < float("inf"):
            raise ConfigError(f"interval_s is {interval_s!r}", fix="use a number of seconds above 0")
        if not isinstance(capacity, int) or capacity < 1:
            raise ConfigError(f"capacity is {capacity!r}", fix="use 1 event or more")
        if not isinstance(target, str | os.PathLike) and not callable(getattr(target, "write", None)):
            raise ConfigError(f"target is a {type(target).__name__}", fix="pass a path, or a text file")
        self._owns_file = isinstance(target, str | os.PathLike)
        self._file = _opened(target) if isinstance(target, str | os.PathLike) else target
        self._interval_s = interval_s
        self._every_step = every_step
        self._capacity = capacity
        self._lock = threading.Lock()  # of what waits
        self._file_lock = threading.Lock()
        self._waiting: list[tuple[float, Event]] = []
        self._steps: DispatchCounters | None = None
        self._num_dropped = 0
        self._num_untold = 0  # of these, not yet in the file
        self._is_closed = False
        self._wake = threading.Event()
        self._write([{"time": time.time(), "event": _OPENED, "version": __version__}])
        self._thread = threading.Thread(target=self._run, name="ostinato-json-lines", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Events that found no room, or that could not be written."""
        return self._num_dropped

    def emit(self, event: Event) -> None:
        """Take one event.

        Raises:
            ClosedError: the sink was closed; a bus counts that.
        """
        is_step = isinstance(event, StepEvent)
        with self._lock:
            if self._is_closed:
                raise ClosedError("this sink was closed", fix="close it after the engine")
            if is_step and not self._every_step:
                if self._steps is None:
                    self._steps = DispatchCounters()
                self._steps.emit(event)
                return
            if len(self._waiting) >= self._capacity:
                self._num_dropped += 1
                self._num_untold += 1
                return
            self._waiting.append((time.time(), event))
        if not is_step:
            self._wake.set()

    def flush(self) -> None:
        """Write what waits, now."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            steps, self._steps = self._steps, None
            num_untold, self._num_untold = self._num_untold, 0
        lines = [{"time": when, "event": type(event).__name__, **_values(event)} for when, event in waiting]
        if steps is not None:
            lines.append({"time": time.time(), "event": _STEPS, **_sums(steps)})
        if num_untold:
            lines.append({"time": time.time(), "event": _DROPPED, "num_events": num_untold})
        if lines:
            self._write(lines)

    def close(self) -> None:
        """Write the rest and close the file. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake.set()
        self._thread.join()
        if self._owns_file:
            try:
                self._file.close()
            except OSError as error:
                logger.warning("the event file could not be closed: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            self.flush()
        self.flush()

    def _write(self, lines: list[dict[str, Any]]) -> None:
        try:
            text = "".join(json.dumps(line) + "\n" for line in lines)
            with self._file_lock:
                self._file.write(text)
                self._file.flush()
        except (OSError, ValueError, TypeError) as error:  # the caller closed its file, or a value is no JSON
            if self._num_dropped == 0:
                logger.warning("events cannot be written: %s", error)
            with self._lock:
                self._num_dropped += len(lines)


def read_json_lines(lines: Iterable[str], *, name: str = "the file") -> Tally:
    """What a `JsonLinesSink` has written, added up since the sink was last opened.

    A last line without its end is left out: somebody is writing it. Events that this version does not know are too.

    Raises:
        ConfigError: a line is no event; it says which.
    """
    tally = Tally()
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            document = json.loads(line)
            kind = document["event"]
            if kind == _OPENED:
                tally = Tally()
            elif kind == _STEPS:
                tally.dispatch.add(document)
            elif kind in _KINDS:
                tally.emit(_event(_KINDS[kind], document))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"line {number} of {name} is no event: {type(error).__name__}: {error}",
                fix="name a file that JsonLinesSink has written",
            ) from error
    return tally


def _opened(path: str | os.PathLike[str]) -> IO[str]:
    try:
        return open(path, "a", encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise ConfigError(f"{path!r} cannot be written: {error}", fix="name a file that can be written") from error


def _values(event: Event) -> dict[str, Any]:
    return {field.name: getattr(event, field.name) for field in fields(event)}  # type: ignore[arg-type]  # all are


def _event(kind: type[Event], document: Mapping[str, Any]) -> Event:
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    told = {name: value for name, value in document.items() if name in known}
    for name, value in told.items():
        if known[name] == "str" and not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, no text")
        if known[name] in _NUMBERS and not (value is None and known[name].endswith("None")):
            _check_number(name, value)
        if known[name] == "tuple[str, ...]" and not (
            isinstance(value, list) and all(isinstance(v, str) for v in value)
        ):
            raise TypeError(f"{name} is {value!r}, no texts")
    return kind(**told)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is {value!r}, no count and no time")


def _sums(steps: DispatchCounters) -> dict[str, Any]:
    told = steps.snapshot()
    return {name: told[name] for name in ("steps", "buckets", "key_hits", "histogram")}
