"""Counters of dispatch: how many steps ran how, why, in which bucket, with how much padding, and for how long.

A sink like any other; the dispatcher feeds it through the bus. Other sinks accumulate in one, and `ostinato stats`
adds up in one what they have written. Pure bookkeeping: nothing is read from a clock or a device here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ostinato.telemetry.ceiling import OVER_LARGEST, CeilingWatch
from ostinato.telemetry.events import (
    CaptureFailed,
    Event,
    GraphCaptured,
    GraphClosed,
    KeyQuarantined,
    KeysPlanned,
    StepDispatched,
    StepFinished,
)

__all__ = ["KEY_STATES", "BucketCount", "DispatchCounters"]

KEY_STATES = ("captured", "waiting", "failed", "quarantined")
"""What a planned key may be: "waiting" is one that has no graph yet, or whose graph was released."""


@dataclass(slots=True)
class BucketCount:
    """One row of the dispatch table."""

    runtime_mode: str
    bucket: str
    reason: str
    hits: int = 0
    live_tokens: int = 0
    padded_tokens: int = 0
    """The waste: bucket size minus live size, summed."""
    launch_seconds: float = 0.0
    """See `StepDispatched`."""
    step_seconds: float = 0.0
    """See `StepFinished`; 0 outside of an engine."""

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        return asdict(self)


_COUNTED: Final = ("hits", "live_tokens", "padded_tokens", "launch_seconds", "step_seconds")
"""Of a `BucketCount`."""


@dataclass
class DispatchCounters:
    """Counts steps since the last `reset`, and knows in what state each planned key is."""

    steps: int = 0
    live_tokens: int = 0
    padded_tokens: int = 0
    by_runtime_mode: Counter[str] = field(default_factory=Counter)
    by_reason: Counter[str] = field(default_factory=Counter)
    buckets: dict[tuple[str, str, str], BucketCount] = field(default_factory=dict)
    decode_sizes: Counter[int] = field(default_factory=Counter)
    """Requests of decode steps -> steps."""
    mixed_sizes: Counter[int] = field(default_factory=Counter)
    """Tokens of all other steps -> steps."""
    key_hits: Counter[str] = field(default_factory=Counter)
    """Key -> steps that replayed it."""
    key_states: dict[str, str] = field(default_factory=dict)
    """Planned key -> one of `KEY_STATES`; outlives `reset`."""
    max_captured_tokens: int | None = None
    """See `KeysPlanned.max_captured_tokens`; outlives `reset`."""
    ceiling: CeilingWatch | None = None
    """Told of steps that were too large for every bucket."""

    def emit(self, event: Event) -> None:
        """Count ``event`` if it is about a step or a key."""
        if isinstance(event, StepDispatched):
            self._count(event)
        elif isinstance(event, StepFinished):
            self._row(event.runtime_mode, event.bucket, event.reason).step_seconds += event.seconds
        else:
            self._note_key(event)

    def add(self, snapshot: Mapping[str, Any]) -> None:
        """Count what another's `snapshot` has counted; its keys' states are left out.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        for told in snapshot["buckets"]:
            if not all(0 <= float(told[name]) < float("inf") for name in _COUNTED):
                raise ValueError(f"a row of steps counts {[told[name] for name in _COUNTED]}")
            row = self._row(str(told["runtime_mode"]), str(told["bucket"]), str(told["reason"]))
            hits, live, waste = int(told["hits"]), int(told["live_tokens"]), int(told["padded_tokens"])
            row.hits += hits
            row.live_tokens += live
            row.padded_tokens += waste
            row.launch_seconds += float(told["launch_seconds"])
            row.step_seconds += float(told["step_seconds"])
            self.steps += hits
            self.live_tokens += live
            self.padded_tokens += waste
            self.by_runtime_mode[row.runtime_mode] += hits
            self.by_reason[row.reason] += hits
        self.key_hits.update({str(key): int(hits) for key, hits in snapshot["key_hits"].items()})
        for kind, sizes in (("decode", self.decode_sizes), ("mixed", self.mixed_sizes)):
            sizes.update({int(size): int(count) for size, count in snapshot["histogram"][kind].items()})

    def reset(self) -> None:
        """Forget all that was counted."""
        self.steps = self.live_tokens = self.padded_tokens = 0
        for counted in (self.by_runtime_mode, self.by_reason, self.decode_sizes, self.mixed_sizes, self.key_hits):
            counted.clear()
        self.buckets.clear()
        if self.ceiling is not None:
            self.ceiling.rearm()

    def snapshot(self) -> dict[str, Any]:
        """``{"steps", "by_runtime_mode", "by_reason", "live_tokens", "padded_tokens", "buckets", "key_hits", ...}``.

        "never_hit" are the planned keys that no step has replayed, "keys" the number of keys by state,
        "max_captured_tokens" what the largest mixed one may have. "histogram" is what ``ostinato plan --histogram``
        takes: ``{"decode": {size: steps}, "mixed": {size: steps}}``.
        """
        states = dict(self.key_states)  # keys come and go on other threads
        rows = sorted(self.buckets.values(), key=lambda r: (r.runtime_mode, -r.hits, r.bucket, r.reason))
        return {
            "steps": self.steps,
            "by_runtime_mode": dict(self.by_runtime_mode),
            "by_reason": dict(self.by_reason),
            "live_tokens": self.live_tokens,
            "padded_tokens": self.padded_tokens,
            "buckets": [row.to_dict() for row in rows],
            "key_hits": dict(self.key_hits),
            "never_hit": [key for key in states if not self.key_hits[key]],
            "keys": {state: sum(s == state for s in states.values()) for state in KEY_STATES},
            "max_captured_tokens": self.max_captured_tokens,
            "histogram": {
                "decode": {str(size): count for size, count in sorted(self.decode_sizes.items())},
                "mixed": {str(size): count for size, count in sorted(self.mixed_sizes.items())},
            },
        }

    def _count(self, event: StepDispatched) -> None:
        mode, reason, live = event.runtime_mode, event.reason, event.live_tokens
        waste = event.padded_tokens - live
        self.steps += 1
        self.live_tokens += live
        self.padded_tokens += waste
        self.by_runtime_mode[mode] += 1
        self.by_reason[reason] += 1
        if event.is_decode:
            self.decode_sizes[event.live_reqs or live] += 1
        else:
            self.mixed_sizes[live] += 1
        row = self._row(mode, event.bucket, reason)
        row.hits += 1
        row.live_tokens += live
        row.padded_tokens += waste
        row.launch_seconds += event.launch_seconds
        if event.key is not None:
            self.key_hits[event.key] += 1
        elif reason == OVER_LARGEST and self.ceiling is not None:
            self.ceiling.step_above(self.steps, event)

    def _row(self, mode: str, bucket: str, reason: str) -> BucketCount:
        key = (mode, bucket, reason)
        row = self.buckets.get(key)
        if row is None:
            row = self.buckets[key] = BucketCount(mode, bucket, reason)
        return row

    def _note_key(self, event: Event) -> None:
        states = self.key_states
        if isinstance(event, KeysPlanned):
            self.key_states = {key: states.get(key, "waiting") for key in event.keys}
            self.max_captured_tokens = event.max_captured_tokens
            if self.ceiling is not None:
                self.ceiling.keys_planned(event)
        elif isinstance(event, GraphCaptured):
            states[event.key] = "captured"
        elif isinstance(event, CaptureFailed):
            states[event.key] = "failed"
        elif isinstance(event, KeyQuarantined):
            states[event.key] = "quarantined"
        elif isinstance(event, GraphClosed):
            if event.reason == "retired":
                states.pop(event.key, None)
            elif event.key in states:
                states[event.key] = "waiting"
