"""`Decision`: what one step will do and why. Pure values; every step yields one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode

__all__ = ["Decision", "Reason", "Rejection"]


class Reason(StrEnum):
    """Why a step runs as it does. Stable names: counters and dashboards key on them."""

    EXACT = "EXACT"
    """A graph of just this size."""
    PADDED = "PADDED"
    """A graph of the next larger bucket."""
    OVER_LARGEST = "OVER_LARGEST"
    """Larger than the largest bucket (tokens, requests or context)."""
    NOT_UNIFORM = "NOT_UNIFORM"
    """The batch mixes prefill and decode, and only uniform decode has graphs."""
    NOT_CAPTURED_YET = "NOT_CAPTURED_YET"
    """The bucket is planned, but there is no graph of it."""
    CAPTURE_FAILED = "CAPTURE_FAILED"
    """The bucket's capture failed; see the capture report."""
    MOVED = "MOVED"
    """What the graph reads has moved; with ``on_moved="recapture"`` it is captured anew before a step uses it."""
    QUARANTINED = "QUARANTINED"
    """The graph was found to differ from eager, or its replays raised again and again."""
    PADDING_COST = "PADDING_COST"
    """The next bucket is larger than ``max_padding`` allows."""
    PADDING_OFF = "PADDING_OFF"
    """Padding is off, and there is no graph of just this size."""
    VARIANT = "VARIANT"
    """No graph for this variant of the step."""
    LORA = "LORA"
    """No graph for this number of active adapters."""
    BACKEND_SUPPORT = "BACKEND_SUPPORT"
    """The attention backend cannot run this batch inside a graph."""
    MEASURED_SLOWER = "MEASURED_SLOWER"
    """By measured cost, padding included, another candidate is cheaper; as the reason for a step: eager is."""
    LATER_IN_ORDER = "LATER_IN_ORDER"
    """Of a candidate beside the chosen one: not measured, or not cheaper by more than the hysteresis."""
    VETOED = "VETOED"
    """The batch forbids it for this step; the rejection says why."""
    DISABLED = "DISABLED"
    """The mode has no graphs."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that was not taken: which kind of graph, and why.

    ``key`` and ``cost_ms`` (expected, padding included) are set where a usable candidate lost by cost.
    """

    candidate: str
    reason: Reason
    detail: str = ""
    key: GraphKey | None = None
    cost_ms: float | None = None


@dataclass(frozen=True, kw_only=True)  # no slots: names are made once, and a decision serves many steps
class Decision:
    """The outcome of dispatch for one live batch.

    ``key`` is None for EAGER. ``padded_tokens`` and ``padded_reqs`` are the sizes that will be executed.
    ``alternatives`` lists the candidates that come before the chosen one, with the reason against each; where costs
    were measured, those after it too. ``cost_ms`` is the expected time of the step, None where it was not measured.
    """

    runtime_mode: RuntimeMode
    key: GraphKey | None
    live: LiveBatch
    reason: Reason
    padded_tokens: int
    padded_reqs: int | None
    alternatives: tuple[Rejection, ...] = ()
    cost_ms: float | None = None

    @cached_property
    def bucket(self) -> str:
        """The bucket as reports name it."""
        if self.key is None:
            return "-"
        tier = f"/{self.key.kv_tier}" if self.key.kv_tier is not None else ""
        return f"{self.key.num_tokens}{tier}"

    @cached_property
    def key_name(self) -> str | None:
        """The key as reports name it; None for EAGER."""
        return None if self.key is None else str(self.key)

    @cached_property
    def labels(self) -> tuple[str, str, str]:
        """(runtime mode, bucket, reason): the row of the dispatch table that the step belongs to."""
        return self.runtime_mode.value, self.bucket, self.reason.value

    def __str__(self) -> str:
        what = f"{self.runtime_mode} because {self.reason}: {self.live.num_tokens} live tokens"
        if self.key is not None:
            what += f" in bucket {self.bucket} ({self.padded_tokens - self.live.num_tokens} padded)"
        for rejection in self.alternatives:
            what += f"; not {rejection.candidate}: {rejection.reason}"
            what += f" ({rejection.detail})" if rejection.detail else ""
        return what
