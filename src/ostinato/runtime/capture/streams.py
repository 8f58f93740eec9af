"""Sees how streams wait for each other in a capture, and refuses a side stream that is not joined again, by its name.

Installed for a session by diverting the methods of torch's stream and event classes, which have no other hook that can
be taken off again. Both backends use it, so that one rule holds: on a GPU for `torch.cuda`, when simulated for the
streams of `torch.cpu`, which exist for device-agnostic code and do nothing. The device keeps the last word: waits by
C++ or by plain `torch.Stream` and `torch.Event` objects, and kernels launched past the dispatcher, are seen by their
effect alone, and so is what an event that was made before the session is: an external one may cross a segment's border.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from ostinato.errors import HostSyncError, UnjoinedStreamError
from ostinato.runtime.capture.diverted import diverted
from ostinato.runtime.capture.forks import Fork, ForkLog
from ostinato.runtime.capture.stream_api import StreamApi
from ostinato.runtime.ops import UNINITIALISED_OPS, op_name
from ostinato.runtime.user_frames import user_frame

__all__ = ["StreamWatch", "not_forked", "unjoined"]

_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class StreamWatch:
    """Keeps a `ForkLog` of what this thread does with streams. One per backend."""

    def __init__(self, api: StreamApi) -> None:
        self._api = api
        self._log = ForkLog()
        self._thread: int | None = None
        self._is_inside = False  # a method of ours calls others of ours
        self._plain: dict[int, Any] = {}  # events of the session that are not external
        self._current_key = self._slow_key

    @contextmanager
    def session(self) -> Iterator[None]:
        """Watch this thread. The caller holds the process's only session (see `OpWatch`)."""
        stream, event = self._api.stream_class, self._api.event_class
        methods: list[tuple[type, str, _Wrap]] = [
            (stream, "wait_stream", self._wait_stream),
            (stream, "wait_event", self._wait_event),
            (stream, "record_event", self._record_event),
            (event, "record", self._record),
            (event, "wait", self._wait),
        ]
        if isinstance(event.__new__, FunctionType):  # torch.cpu has none of its own, and no external events
            methods.append((event, "__new__", self._new))
        for owner, name in ((stream, "synchronize"), (stream, "query"), (event, "synchronize"), (event, "query")):
            if hasattr(owner, name):  # torch.cpu's streams have neither
                methods.append((owner, name, self._asks(name)))
        self._thread = threading.get_ident()
        self._forget()
        try:
            with ExitStack() as stack:
                for method in methods:
                    stack.enter_context(diverted(*method))
                yield
        finally:
            self._thread = None
            self._forget()

    def begin(self) -> None:
        """A segment begins on the current stream."""
        origin, fast = self._slow_key(), self._api.current_key
        self._current_key = fast if fast is not None and fast() == origin else self._slow_key
        self._log.open(origin)

    def close(self) -> None:
        """The segment is over; `forks` still tells of it."""
        self._log.close()

    def forks(self) -> list[Fork]:
        """The side streams of the segment, first fork first."""
        return self._log.forks()

    def suspects(self) -> list[Fork]:
        """Which of them the device may have meant, when it found unjoined work."""
        return self._log.suspects()

    def is_forked(self) -> bool:
        """Whether the current stream is of the open segment, as far as was seen."""
        return self._log.has(self._current_key())

    def current_name(self) -> str:
        """What errors call the current stream."""
        return self._api.name(self._api.current())

    def note_op(self, func: Any, *, has_fresh_result: bool) -> None:
        """An op of the open segment ran on the current stream. Views and uninitialised memory are no work."""
        key = self._current_key()
        if not self._log.has(key):  # the device says that it captures, and no wait was seen
            self._adopt(self._api.current())
        if func._schema.is_mutable or (has_fresh_result and op_name(func) not in UNINITIALISED_OPS):
            self._log.work(key)

    def check_end(self) -> UnjoinedStreamError | None:
        """The error of a segment that ends now on the current stream, if what was seen of it decides that."""
        if self._log.is_complete and (forks := self._log.unjoined()):
            return unjoined(forks)
        if self._api.key(self._api.current()) != self._log.origin:
            return UnjoinedStreamError(
                f"the segment ends while {self.current_name()} is the current one, not the stream that it began on",
                fix="leave the side stream, and join it, before the break or the end",
                stream=self.current_name(),
                at=user_frame(),
            )
        return None

    def _slow_key(self) -> Hashable:
        return self._api.key(self._api.current())

    def _fork(self, stream: Any) -> Fork:
        return Fork(stream=stream, name=self._api.name(stream), parent="a stream that was not seen", at=user_frame())

    def _adopt(self, stream: Any) -> None:
        """Something unseen has made ``stream`` a part of the segment, or made it wait."""
        self._log.is_complete = False
        key = self._api.key(stream)
        if not self._log.has(key):
            self._log.adopt(key, self._fork(stream))

    def _runs_inside(self, original: Callable[..., Any], *args: Any) -> Any:
        self._is_inside = True
        try:
            return original(*args)
        finally:
            self._is_inside = False

    def _is_watched(self) -> bool:
        return not self._is_inside and self._thread == threading.get_ident()

    def _forget(self) -> None:
        self._log.clear()
        self._plain.clear()

    def _note_record(self, event: Any, stream: Any) -> None:
        key = self._api.key(stream)
        asks = None if self._log.has(key) or not self._log.is_open else self._api.is_capturing
        if asks is not None and asks(stream):  # forked where nobody looked
            self._adopt(stream)
        self._log.record(event, key, self._api.name(stream))

    def _wait_for(self, stream: Any, event: Any, wait: Callable[[], Any]) -> Any:
        """Let ``stream`` wait for ``event`` by ``wait``, and note it."""
        key, is_device = self._api.key(stream), self._api.is_capturing is not None
        is_foreign = self._log.is_foreign(event, key)
        is_unseen = self._log.has(key) and not self._log.is_known(event)
        if (is_foreign and (id(event) in self._plain or not is_device)) or (is_unseen and not is_device):
            raise self._foreign(stream, event)
        try:
            result = wait()
        except RuntimeError as error:
            if is_foreign or is_unseen:
                raise self._foreign(stream, event) from error
            raise
        if not self._log.is_open or is_foreign or not self._has_joined(stream):
            return result
        if self._log.is_known(event):
            self._log.wait(event, key, self._fork(stream))
        elif is_device:  # recorded where nobody looked
            self._adopt(stream)
        return result

    def _has_joined(self, stream: Any) -> bool:
        """An event made with ``external=True`` becomes a node of the graph, and draws no stream into the capture."""
        return self._api.is_capturing is None or self._api.is_capturing(stream)

    def _foreign(self, stream: Any, event: Any) -> UnjoinedStreamError:
        """CUDA has no such wait (cudaErrorStreamCaptureIsolation): a replay could not make it."""
        name, recorded_on = self._api.name(stream), self._log.recorded_on(event)
        what = "an event that was not recorded in it" if recorded_on is None else f"work of {recorded_on} outside of it"
        return UnjoinedStreamError(
            f"{name} waits across the border of a segment: for {what}",
            fix="fork and join in one segment, after every break anew, and record there what is waited for there; "
            "wait for other work before the graph, or in a @graph_break function",
            stream=name,
            waits_for=recorded_on or "an event",
            at=user_frame(),
        )

    def _is_captured(self, target: Any) -> bool:
        """Whether ``target`` is a stream of the open segment, or an event recorded in it that is not external."""
        if isinstance(target, self._api.stream_class):
            return self._log.has(self._api.key(target))
        return self._log.is_of_segment(target) and (id(target) in self._plain or self._api.is_capturing is None)

    # What takes the place of torch's methods, with torch's names of arguments. Each passes through for other threads,
    # and inside of one another.

    def _new(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def new(cls: Any, *args: Any, **named: Any) -> Any:
            event = original(cls, *args, **named)
            if self._is_watched() and not (named.get("external", False) or any(args[3:])):
                self._plain[id(event)] = event
            return event

        return new

    def _wait_stream(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait_stream(waiting: Any, stream: Any) -> Any:
            if not self._is_watched() or stream is None:  # None: torch's to refuse; elsewhere it is the current stream
                return original(waiting, stream)
            event = object()  # stands for the one that torch makes inside, which is not external
            self._plain[id(event)] = event
            self._note_record(event, stream)
            return self._wait_for(waiting, event, lambda: self._runs_inside(original, waiting, stream))

        return wait_stream

    def _wait_event(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait_event(stream: Any, event: Any) -> Any:
            if not self._is_watched():
                return original(stream, event)
            return self._wait_for(stream, event, lambda: self._runs_inside(original, stream, event))

        return wait_event

    def _record_event(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def record_event(stream: Any, *event: Any, **named: Any) -> Any:
            if not self._is_watched():
                return original(stream, *event, **named)
            recorded = self._runs_inside(lambda: original(stream, *event, **named))
            if recorded is None:  # torch.cpu gives none; with one, a join by it can be told from a forgotten one
                recorded = self._api.event_class()
            if not event and not named:
                self._plain[id(recorded)] = recorded
            self._note_record(recorded, stream)
            return recorded

        return record_event

    def _record(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def record(event: Any, stream: Any = None) -> Any:
            if not self._is_watched():
                return original(event, stream)
            result = self._runs_inside(original, event, stream)
            self._note_record(event, self._api.current() if stream is None else stream)
            return result

        return record

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(event: Any, stream: Any = None) -> Any:
            if not self._is_watched():
                return original(event, stream)
            waiting = self._api.current() if stream is None else stream
            return self._wait_for(waiting, event, lambda: self._runs_inside(original, event, stream))

        return wait

    def _asks(self, method: str) -> _Wrap:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def ask(target: Any) -> Any:
                if self._is_watched() and self._is_captured(target):
                    name = f"{type(target).__name__}.{method}"
                    raise HostSyncError(
                        f"{name}() asks in a capture for its own work, which no device has begun",
                        fix="move the call into a @graph_break function, or do it during warm_up",
                        op=name,
                        at=user_frame(),
                    )
                return original(target)

            return ask

        return wrap


def unjoined(forks: list[Fork]) -> UnjoinedStreamError:
    """The error of a segment whose side streams ``forks`` have work that nobody waits for; empty: none was seen."""
    if not forks:
        return UnjoinedStreamError(
            "a stream was forked in the capture and not joined to it again",
            fix="end the side stream's work with torch.cuda.current_stream().wait_stream(side), in the segment",
            at=user_frame(),
        )
    return UnjoinedStreamError(
        f"forked in the capture and not joined to it again: {', '.join(map(str, forks))}",
        fix="after the side stream's last work, in the segment: current_stream().wait_stream(side)",
        streams=[fork.name for fork in forks],
        at=forks[0].at,
    )


def not_forked(op: str, name: str) -> UnjoinedStreamError:
    """The error of an op on stream ``name``, which the open segment does not have."""
    return UnjoinedStreamError(
        f"{op} runs on {name}, which was not forked from the capturing stream",
        fix="call side.wait_stream(current_stream()) in the same segment, after every break anew",
        op=op,
        stream=name,
        at=user_frame(),
    )
