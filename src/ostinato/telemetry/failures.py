"""`FailureCounters`: how often something went wrong or was given up, by kind. A sink like any other."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ostinato.telemetry.events import (
    CaptureFailed,
    EngineDied,
    Event,
    KeyQuarantined,
    LoadAboveCeiling,
    ReceiverFailed,
    RequestPreempted,
    StepEvent,
    StepFailed,
)

__all__ = ["FailureCounters"]


@dataclass
class FailureCounters:
    """Counts since it was made."""

    preemptions: int = 0
    failed_steps: int = 0
    failed_requests: int = 0
    """Requests that ended with a failed step or with the engine."""
    failed_captures: int = 0
    quarantines: int = 0
    failed_receivers: int = 0
    engine_deaths: int = 0
    ceiling_warnings: int = 0

    def emit(self, event: Event) -> None:
        """Count ``event`` if it is a failure."""
        if isinstance(event, StepEvent):
            return  # nearly all events: the rest may take its time
        if isinstance(event, RequestPreempted):
            self.preemptions += 1
        elif isinstance(event, StepFailed):
            self.failed_steps += 1
            self.failed_requests += event.num_reqs
        elif isinstance(event, CaptureFailed):
            self.failed_captures += 1
        elif isinstance(event, KeyQuarantined):
            self.quarantines += 1
        elif isinstance(event, ReceiverFailed):
            self.failed_receivers += 1
        elif isinstance(event, EngineDied):
            self.engine_deaths += 1
            self.failed_requests += event.num_reqs
        elif isinstance(event, LoadAboveCeiling):
            self.ceiling_warnings += 1

    def snapshot(self) -> dict[str, int]:
        """Kind -> count."""
        return asdict(self)
