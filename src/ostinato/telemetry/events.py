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
    "KeyDropped",
    "KeyQuarantined",
    "ModeResolved",
    "ReceiverFailed",
    "RequestPreempted",
    "StepDispatched",
    "StepFailed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Root of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResolved(Event):
    """The mode asked for became another one, or was confirmed, for ``reason``."""

    asked: str
    resolved: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDropped(Event):
    """A key was left out of the plan: no step could use it."""

    key: str
    reason: str


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
class KeyQuarantined(Event):
    """A captured key does not do what eager does, or fails again and again: no step uses it from here on.

    ``found_by`` is "qualify", "shadow" or "failures"; ``where`` the first segment, op or state that shows it.
    """

    key: str
    found_by: str
    what: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDispatched(Event):
    """One step was run: how, in which bucket, and why. Sizes are tokens."""

    runtime_mode: str
    bucket: str
    reason: str
    live_tokens: int
    padded_tokens: int
    is_decode: bool = False
    """Every request was in decode, by its state, and brought as many tokens."""
    live_reqs: int | None = None
    """Requests in the step; None where the callable knows none."""


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
