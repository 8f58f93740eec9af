"""Typed events, counters and sinks. No torch."""

from ostinato.telemetry.counters import BucketCount, DispatchCounters
from ostinato.telemetry.events import (
    CaptureFailed,
    Event,
    GraphCaptured,
    ModeResolved,
    RequestPreempted,
    StepDispatched,
)
from ostinato.telemetry.sinks import EventBus, LogSink, MemorySink, Sink

__all__ = [
    "BucketCount",
    "CaptureFailed",
    "DispatchCounters",
    "Event",
    "EventBus",
    "GraphCaptured",
    "LogSink",
    "MemorySink",
    "ModeResolved",
    "RequestPreempted",
    "Sink",
    "StepDispatched",
]
