"""Typed events, counters and sinks. No torch."""

from ostinato.telemetry.counters import BucketCount, DispatchCounters
from ostinato.telemetry.events import (
    BreaksMissing,
    CaptureFailed,
    Event,
    GraphCaptured,
    KeyDropped,
    ModeResolved,
    RequestPreempted,
    StepDispatched,
)
from ostinato.telemetry.sinks import EventBus, LogSink, MemorySink, Sink

__all__ = [
    "BreaksMissing",
    "BucketCount",
    "CaptureFailed",
    "DispatchCounters",
    "Event",
    "EventBus",
    "GraphCaptured",
    "KeyDropped",
    "LogSink",
    "MemorySink",
    "ModeResolved",
    "RequestPreempted",
    "Sink",
    "StepDispatched",
]
