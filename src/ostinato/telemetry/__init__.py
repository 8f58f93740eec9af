"""Typed events, counters and sinks. No torch."""

from ostinato.telemetry.counters import BucketCount, DispatchCounters
from ostinato.telemetry.events import (
    BreaksMissing,
    CaptureFailed,
    EngineDied,
    Event,
    GraphCaptured,
    KeyDropped,
    KeyQuarantined,
    ModeResolved,
    ReceiverFailed,
    RequestPreempted,
    StepDispatched,
    StepFailed,
)
from ostinato.telemetry.sinks import EventBus, LogSink, MemorySink, Sink

__all__ = [
    "BreaksMissing",
    "BucketCount",
    "CaptureFailed",
    "DispatchCounters",
    "EngineDied",
    "Event",
    "EventBus",
    "GraphCaptured",
    "KeyDropped",
    "KeyQuarantined",
    "LogSink",
    "MemorySink",
    "ModeResolved",
    "ReceiverFailed",
    "RequestPreempted",
    "Sink",
    "StepDispatched",
    "StepFailed",
]
