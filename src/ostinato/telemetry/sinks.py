"""Where events go: the `Sink` Protocol, a bus that fans out, and a sink that remembers.

A sink that raises never harms a step: the bus drops the error and counts it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

from ostinato.errors import ConfigError
from ostinato.telemetry.events import (
    BreaksMissing,
    CaptureFailed,
    EngineDied,
    Event,
    KeyDropped,
    KeyQuarantined,
    LoadAboveCeiling,
    ModeResolved,
    ReceiverFailed,
    ShadowFailed,
    StepEvent,
    StepFailed,
    TensorMoved,
)

__all__ = ["EventBus", "LogSink", "MemorySink", "Sink"]

logger = logging.getLogger("ostinato")


class Sink(Protocol):
    """Anything that takes events."""

    def emit(self, event: Event) -> None:
        """Take one event; called on the thread that runs the step, so be quick."""
        ...


class MemorySink:
    """Keeps the last ``capacity`` events, oldest first."""

    def __init__(self, capacity: int = 1024) -> None:
        self.events: deque[Event] = deque(maxlen=capacity)

    def emit(self, event: Event) -> None:
        self.events.append(event)


class LogSink:
    """Writes what an operator should see: changed settings, failed captures, what requests or the engine died of."""

    def emit(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            return  # nearly all events, and nothing to say
        if isinstance(event, CaptureFailed):
            logger.warning("capture of %s failed and was dropped: %s", event.key, event.error)
        elif isinstance(event, KeyDropped):
            logger.info("%s is not captured: %s", event.key, event.reason)
        elif isinstance(event, TensorMoved):
            logger.warning("%s is captured anew before it is used again: %s", event.key, event.what)
        elif isinstance(event, KeyQuarantined):
            finding = "; ".join(part for part in (event.what, event.where) if part)
            logger.error("%s is quarantined (%s): %s", event.key, event.found_by, finding)
        elif isinstance(event, ShadowFailed):
            logger.error("the shadow of a step of %s failed, it is not compared: %s", event.key, event.error)
        elif isinstance(event, StepFailed):
            text = "a step of %d requests failed (%d in a row): %s"
            logger.error(text, event.num_reqs, event.num_in_a_row, event.error)
        elif isinstance(event, EngineDied):
            logger.critical("the engine is dead, %d requests ended: %s", event.num_reqs, event.error)
        elif isinstance(event, ReceiverFailed):
            logger.error("request %s was aborted, its receiver raised: %s", event.request_id, event.error)
        elif isinstance(event, LoadAboveCeiling):
            told = (event.num_over, event.num_recent, event.smallest_live_tokens, event.largest_live_tokens)
            ceiling = f"{event.largest_tokens} tokens"
            ceiling += "" if event.largest_reqs is None else f", {event.largest_reqs} requests of decode"
            text = "%d of the last %d steps (%d to %d tokens) ran eagerly: the largest bucket is %s; %s"
            logger.warning(text, *told, ceiling, event.fix)
        elif isinstance(event, BreaksMissing):
            logger.warning("%s has %d breaks, warm-up met %d", event.key, event.got, event.expected)
        elif isinstance(event, ModeResolved) and event.asked not in (event.resolved, "auto"):
            logger.warning("%s %s became %s: %s", event.setting, event.asked, event.resolved, event.reason)


class EventBus:
    """Fans events out to sinks.

    Raises:
        ConfigError: a sink has no ``emit``.
    """

    def __init__(self, *sinks: Sink) -> None:
        for sink in sinks:
            if not callable(getattr(sink, "emit", None)):
                raise ConfigError(f"a sink is of type {type(sink).__name__}", fix="pass objects with emit(event)")
        self._sinks = list(sinks)
        self.num_dropped = 0

    def subscribe(self, sink: Sink) -> None:
        """Add ``sink``; it sees events from now on."""
        self._sinks.append(sink)

    def emit(self, event: Event) -> None:
        """Give ``event`` to every sink."""
        for sink in self._sinks:
            try:
                sink.emit(event)
            except Exception:
                self.num_dropped += 1
                logger.debug("a telemetry sink raised", exc_info=True)
