"""Typed events: everything the runtime and the engine do that a reader may ask about later.

Plain frozen values without torch. Each kind of event is one dataclass; sinks get them as they happen.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BreaksMissing",
    "CaptureFailed",
    "EngineDied",
    "Event",
    "GraphCaptured",
    "GraphClosed",
    "KeyDropped",
    "KeyQuarantined",
    "KeysPlanned",
    "LoadAboveCeiling",
    "ModeResolved",
    "ReceiverFailed",
    "RequestPreempted",
    "ShadowFailed",
    "StepDispatched",
    "StepEvent",
    "StepFailed",
    "StepFinished",
    "TensorMoved",
]


class Event:
    """Root of all events."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResolved(Event):
    """The mode asked for became another one, or was confirmed, for ``reason``; or another ``setting`` of
    `GraphConfig` became what it can be here (``partition``, ``compile``, ``full_mixed_max_tokens``)."""

    asked: str
    resolved: str
    reason: str
    setting: str = "mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDropped(Event):
    """A key was left out of the plan: no step could use it."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysPlanned(Event):
    """All keys that steps may be given from here on: at the start, and again when sizes are changed while running."""

    keys: tuple[str, ...]
    largest_tokens: int
    """Of any key; 0 where there is none."""
    largest_reqs: int | None = None
    """Of the keys of uniform decode; None where there is none."""
    max_captured_tokens: int | None = None
    """Of the largest key that other sizes may bring, but for uniform decode; None where nobody tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreaksMissing(Event):
    """A captured plan holds fewer breaks than warm-up met: some work that must run eagerly was frozen."""

    key: str
    expected: int
    got: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCaptured(Event):
    """One key was captured. ``seconds`` is wall time, ``nodes`` the kernels or recorded calls."""

    key: str
    seconds: float
    segments: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFailed(Event):
    """One key could not be captured and was dropped alone."""

    key: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphClosed(Event):
    """The graph of a key was given back: "released" until the next capture, "moved" until a step wants it again, or
    "retired" for good."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMoved(Event):
    """A tensor that the graph of a key reads is not where it was: the key is captured anew before it is used again.

    ``what`` is the error that the step would have raised: it names the tensor, the segment, and since when.
    """

    key: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuarantined(Event):
    """A captured key does not do what eager does, or fails again and again: no step uses it from here on.

    ``found_by`` is "qualify", "shadow" or "failures"; ``where`` the first segment, op or state that shows it.
    """

    key: str
    found_by: str
    what: str
    where: str


@dataclass(slots=True, kw_only=True)
class ShadowFailed(Event):
    """A step could not be kept for its shadow, or its eager run raised: it is not compared. Nothing else is harmed."""

    key: str
    error: str


@dataclass(slots=True, kw_only=True)
class StepEvent(Event):
    """About one step: how it ran, in which bucket, and why. Nearly all events are.

    Not frozen only because that would triple what it costs to make one: two a step. Sinks change nothing.
    """

    runtime_mode: str
    bucket: str
    reason: str


@dataclass(slots=True, kw_only=True)
class StepDispatched(StepEvent):
    """One step was run. Sizes are tokens."""

    live_tokens: int
    padded_tokens: int
    is_decode: bool = False
    """Every request was in decode, by its state, and brought as many tokens."""
    live_reqs: int | None = None
    """Requests in the step; None where the callable knows none."""
    key: str | None = None
    """The key that was replayed; None for EAGER."""
    launch_seconds: float = 0.0
    """Host time of the replay or of the eager run: on a GPU that of launching it, on a CPU that of the work."""


@dataclass(slots=True, kw_only=True)
class StepFinished(StepEvent):
    """An engine has read a step's tokens. ``seconds`` is the wall time that the step held the engine.

    It counts from the step's launch, or from when the step before was read if that was later, so that the seconds of
    overlapped steps add up to the time that went by. A step in which nobody samples is not read: its time is in the
    next one that is. Nothing waits for the sake of this number.
    """

    runtime_mode: str
    bucket: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAboveCeiling(Event):
    """So many of the last ``num_recent`` steps ran eagerly because they were larger than every bucket.

    Told once, and again only after the counters were reset or the sizes changed. Sizes are tokens and requests.
    """

    num_over: int
    num_recent: int
    largest_tokens: int
    largest_reqs: int | None
    smallest_live_tokens: int
    largest_live_tokens: int
    largest_live_reqs: int | None
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreempted(Event):
    """A request gave up its pages and will be computed again."""

    request_id: str
    computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(Event):
    """A step failed and its ``num_reqs`` requests ended with an error; the engine goes on.

    ``num_in_a_row`` counts failed steps since the last whose tokens were read.
    """

    error: str
    num_reqs: int
    num_in_a_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDied(Event):
    """The engine cannot go on: its ``num_reqs`` requests ended with an error, and no more are taken."""

    error: str
    num_reqs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverFailed(Event):
    """Whoever was to take a request's updates raised; the request was aborted."""

    request_id: str
    error: str
