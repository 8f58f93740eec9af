"""Typed events, counters and sinks. No torch."""

from ostinato.telemetry.ceiling import CeilingWatch
from ostinato.telemetry.counters import BucketCount, DispatchCounters
from ostinato.telemetry.events import (
    BreaksMissing,
    CaptureFailed,
    EngineDied,
    Event,
    GraphCaptured,
    GraphClosed,
    KeyDropped,
    KeyQuarantined,
    KeysPlanned,
    LoadAboveCeiling,
    ModeResolved,
    ReceiverFailed,
    RequestPreempted,
    ShadowFailed,
    StepDispatched,
    StepEvent,
    StepFailed,
    StepFinished,
    TensorMoved,
)
from ostinato.telemetry.failures import FailureCounters
from ostinato.telemetry.json_lines import JsonLinesSink, read_json_lines
from ostinato.telemetry.prometheus import PrometheusSink, read_metrics
from ostinato.telemetry.sinks import EventBus, LogSink, MemorySink, Sink
from ostinato.telemetry.tally import Tally

__all__ = [
    "BreaksMissing",
    "BucketCount",
    "CaptureFailed",
    "CeilingWatch",
    "DispatchCounters",
    "EngineDied",
    "Event",
    "EventBus",
    "FailureCounters",
    "GraphCaptured",
    "GraphClosed",
    "JsonLinesSink",
    "KeyDropped",
    "KeyQuarantined",
    "KeysPlanned",
    "LoadAboveCeiling",
    "LogSink",
    "MemorySink",
    "ModeResolved",
    "PrometheusSink",
    "ReceiverFailed",
    "RequestPreempted",
    "ShadowFailed",
    "Sink",
    "StepDispatched",
    "StepEvent",
    "StepFailed",
    "StepFinished",
    "Tally",
    "TensorMoved",
    "read_json_lines",
    "read_metrics",
]
