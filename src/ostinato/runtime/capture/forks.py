"""Which streams a segment has forked, and which of them its own stream has waited for since: pure book-keeping.

CUDA's rule for side streams in a capture: a stream belongs to it from the moment that it waits for an event recorded in
it (a fork), and its work must be waited for, directly or through others, by the stream that captures, before the end.
Each stream counts its work, and knows how far it has waited for the others; an event is a copy of that knowledge.
Forks by `wait_stream`, by events and in chains are all the same to it. It knows no device and no torch; `streams`
feeds it.

Source: CUDA C++ programming guide, "Cross-stream dependencies and events" of stream capture.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

__all__ = ["Fork", "ForkLog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """One stream that has joined a segment."""

    stream: Any
    """The program's object."""
    name: str
    parent: str
    """Name of the stream that it waited for."""
    at: str
    """``file:line`` of the wait, or of the first op where nobody saw the wait."""

    def __str__(self) -> str:
        return f"{self.name} (forked from {self.parent} at {self.at})"


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What an event stands for. It holds the event, so that no other takes its identity."""

    event: Any
    segment: int | None
    """None: recorded on a stream that no segment had then."""
    parent: str
    seen: dict[Hashable, int]


class ForkLog:
    """The streams of one segment at a time, and the events of a whole session."""

    def __init__(self) -> None:
        self._events: dict[int, _Recorded] = {}
        self._seen: dict[Hashable, dict[Hashable, int]] = {}  # by stream: how much of each stream's work comes before
        self._forks: dict[Hashable, Fork] = {}
        self.origin: Hashable = None
        """The segment's own stream."""
        self._segment = 0
        self.is_open = False
        self.is_complete = True
        """False once something happened in the segment that was seen by its effect alone: only the device can judge."""

    def clear(self) -> None:
        """Forget all of it: a session begins or ends."""
        self._events.clear()
        self._seen, self._forks = {}, {}
        self.is_open = False

    def open(self, origin: Hashable) -> None:
        """A segment begins on stream ``origin``."""
        self._segment += 1
        self.origin = origin
        self._seen, self._forks = {origin: {}}, {}
        self.is_open = self.is_complete = True

    def close(self) -> None:
        """The segment is over. Its forks can be read until the next one."""
        self.is_open = False

    def has(self, stream: Hashable) -> bool:
        """Whether the open segment has ``stream``."""
        return self.is_open and stream in self._seen

    def work(self, stream: Hashable) -> None:
        """Something that must be waited for runs on a stream that the segment has."""
        seen = self._seen[stream]
        seen[stream] = seen.get(stream, 0) + 1

    def record(self, event: Any, stream: Hashable, name: str) -> None:
        """``event`` stands for all that ``stream``, which is called ``name``, has been given so far."""
        has = self.has(stream)
        seen = {**self._seen[stream], stream: self._seen[stream].get(stream, 0)} if has else {}
        parent = "the capturing stream" if stream == self.origin else name
        self._events[id(event)] = _Recorded(event, self._segment if has else None, parent, seen)

    def is_known(self, event: Any) -> bool:
        """Whether its recording was seen in this session."""
        return id(event) in self._events

    def recorded_on(self, event: Any) -> str | None:
        """Name of the stream that it was recorded on, if that was seen in this session."""
        recorded = self._events.get(id(event))
        return None if recorded is None else recorded.parent

    def is_of_segment(self, event: Any) -> bool:
        """Whether it was last recorded in the open segment, as far as that was seen."""
        recorded = self._events.get(id(event))
        return self.is_open and recorded is not None and recorded.segment == self._segment

    def is_foreign(self, event: Any, stream: Hashable) -> bool:
        """Whether ``stream`` may not wait for ``event``: one of the two is of a segment that the other is not of."""
        recorded = self._events.get(id(event))
        if recorded is None or self.is_of_segment(event):
            return False
        return recorded.segment is not None or self.has(stream)

    def wait(self, event: Any, key: Hashable, fork: Fork) -> None:
        """A stream waits for an event of the open segment; ``fork`` tells of it, should it be the first time."""
        recorded = self._events[id(event)]
        if key not in self._seen:
            self.adopt(key, Fork(stream=fork.stream, name=fork.name, parent=recorded.parent, at=fork.at))
        seen = self._seen[key]
        for stream, count in recorded.seen.items():
            seen[stream] = max(count, seen.get(stream, 0))

    def adopt(self, key: Hashable, fork: Fork) -> None:
        """A stream is of the segment from now on."""
        self._seen[key] = {}
        self._forks[key] = fork

    def forks(self) -> list[Fork]:
        """All streams that the segment has forked, first fork first."""
        return list(self._forks.values())

    def unjoined(self) -> list[Fork]:
        """Those with work that the segment's own stream has not waited for."""
        waited = self._seen.get(self.origin, {})
        return [fork for key, fork in self._forks.items() if self._seen[key].get(key, 0) > waited.get(key, 0)]

    def suspects(self) -> list[Fork]:
        """Where the device found unjoined work and `unjoined` has none: streams never waited for, else all forks."""
        waited = self._seen.get(self.origin, {})
        never = [fork for key, fork in self._forks.items() if key not in waited]
        return self.unjoined() or never or self.forks()
