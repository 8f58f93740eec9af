"""Counters of dispatch: how many steps ran how, why, in which bucket, with how much padding.

A sink like any other; the dispatcher feeds it through the bus. Prometheus and the CLI read `snapshot`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ostinato.telemetry.events import Event, StepDispatched

__all__ = ["BucketCount", "DispatchCounters"]


@dataclass(slots=True)
class BucketCount:
    """One row of the dispatch table."""

    runtime_mode: str
    bucket: str
    reason: str
    hits: int = 0
    live_tokens: int = 0
    padded_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values; ``padded_tokens`` is the waste: bucket size minus live size, summed."""
        return {
            "runtime_mode": self.runtime_mode,
            "bucket": self.bucket,
            "reason": self.reason,
            "hits": self.hits,
            "live_tokens": self.live_tokens,
            "padded_tokens": self.padded_tokens,
        }


@dataclass
class DispatchCounters:
    """Counts `StepDispatched` events since the last `reset`."""

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

    def emit(self, event: Event) -> None:
        """Count ``event`` if it is a step."""
        if not isinstance(event, StepDispatched):
            return
        waste = event.padded_tokens - event.live_tokens
        self.steps += 1
        self.live_tokens += event.live_tokens
        self.padded_tokens += waste
        self.by_runtime_mode[event.runtime_mode] += 1
        self.by_reason[event.reason] += 1
        if event.is_decode:
            self.decode_sizes[event.live_reqs or event.live_tokens] += 1
        else:
            self.mixed_sizes[event.live_tokens] += 1
        key = (event.runtime_mode, event.bucket, event.reason)
        row = self.buckets.get(key)
        if row is None:
            row = self.buckets[key] = BucketCount(*key)
        row.hits += 1
        row.live_tokens += event.live_tokens
        row.padded_tokens += waste

    def reset(self) -> None:
        """Forget everything counted."""
        self.steps = self.live_tokens = self.padded_tokens = 0
        self.by_runtime_mode.clear()
        self.by_reason.clear()
        self.buckets.clear()
        self.decode_sizes.clear()
        self.mixed_sizes.clear()

    def snapshot(self) -> dict[str, Any]:
        """``{"steps", "by_runtime_mode", "by_reason", "live_tokens", "padded_tokens", "buckets", "histogram"}``.

        "histogram" is what ``ostinato plan --histogram`` takes: ``{"decode": {size: steps}, "mixed": {size: steps}}``.
        """
        rows = sorted(self.buckets.values(), key=lambda r: (r.runtime_mode, -r.hits))
        return {
            "steps": self.steps,
            "by_runtime_mode": dict(self.by_runtime_mode),
            "by_reason": dict(self.by_reason),
            "live_tokens": self.live_tokens,
            "padded_tokens": self.padded_tokens,
            "buckets": [row.to_dict() for row in rows],
            "histogram": {
                "decode": {str(size): count for size, count in sorted(self.decode_sizes.items())},
                "mixed": {str(size): count for size, count in sorted(self.mixed_sizes.items())},
            },
        }
