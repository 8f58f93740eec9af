"""`Tally`: all that is counted of one engine or callable, in one sink. What `ostinato stats` shows."""

from __future__ import annotations

from typing import Any

from ostinato.telemetry.counters import DispatchCounters
from ostinato.telemetry.events import Event, StepEvent
from ostinato.telemetry.failures import FailureCounters

__all__ = ["Tally"]


class Tally:
    """Steps, keys and failures."""

    def __init__(self) -> None:
        self.dispatch = DispatchCounters()
        self.failures = FailureCounters()

    def emit(self, event: Event) -> None:
        """Count ``event``."""
        self.dispatch.emit(event)
        if not isinstance(event, StepEvent):
            self.failures.emit(event)

    def snapshot(self) -> dict[str, Any]:
        """``{"dispatch": ..., "failures": ...}``, as `DispatchCounters` and `FailureCounters` tell them."""
        return {"dispatch": self.dispatch.snapshot(), "failures": self.failures.snapshot()}
