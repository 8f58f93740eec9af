"""`Resizing`: which sizes would suit the traffic, and the change to them while running, between two steps.

The new keys are captured, then the cold ones retire. A transaction: a key that cannot be warmed up or captured is
dropped alone, and then nothing is retired, so that no step finds less than before. Called by the facade, which holds
its lock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.errors import ConfigError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Sizes
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import ResolvedMode
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.late_capture import LateCapture
from ostinato.runtime.memory import CaptureCost
from ostinato.runtime.planning import PlannedSizes, SizeSuggestion, largest_first, suggest_sizes
from ostinato.runtime.service import KeyService, plan_reported
from ostinato.telemetry import DispatchCounters, EventBus

__all__ = ["ResizeReport", "Resizing", "changed_sizes"]


@dataclass(slots=True, kw_only=True)
class ResizeReport:
    """What a change of sizes did. ``seconds`` is wall time, during which no step could run."""

    added: list[GraphKey] = field(default_factory=list)
    retired: list[GraphKey] = field(default_factory=list)
    failed: dict[GraphKey, Exception] = field(default_factory=dict)
    """New keys that could not be captured; if there are any, nothing was retired."""
    seconds: float = 0.0
    costs: dict[GraphKey, CaptureCost] = field(default_factory=dict)
    """What each added key has taken of the device."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "added": [str(key) for key in self.added],
            "retired": [str(key) for key in self.retired],
            "failed": {str(key): str(error) for key, error in self.failed.items()},
            "seconds": self.seconds,
        }


def changed_sizes(
    config: GraphConfig,
    keys: Sequence[GraphKey],
    *,
    sizes: tuple[int, ...] | None,
    decode_sizes: tuple[int, ...] | None,
    max_sizes: Mapping[str, int],
) -> GraphConfig:
    """``config`` with other sizes; None leaves a kind as ``keys`` have it.

    Raises:
        ConfigError: a size above the static buffers, of a kind that the mode does not capture, or none as large as the
            largest there is.
    """
    now = PlannedSizes.of(keys)
    changed = dataclasses.replace(
        config,
        sizes=(now.mixed or None) if sizes is None else sizes,
        decode_sizes=(now.decode or None) if decode_sizes is None else decode_sizes,
    )
    if sizes is not None:
        _check("sizes", changed.sizes or (), now.mixed, max_sizes[NUM_TOKENS])
    if decode_sizes is not None:
        _check("decode_sizes", changed.decode_sizes or (), now.decode, max_sizes[NUM_REQS])
    return changed


def _check(name: str, chosen: Sequence[int], planned: Sequence[int], most: int) -> None:
    """Both ascending; ``most`` is what the static buffers hold."""
    if not planned:
        raise ConfigError(f"there are no graphs that {name} would change", fix=f"leave {name} out in this mode")
    if chosen[-1] > most:
        raise ConfigError(
            f"{name} has {chosen[-1]}, and the static buffers hold {most}",
            fix="a larger step needs a new Graphed with another max_size or max_num_reqs",
        )
    if chosen[-1] < planned[-1]:
        raise ConfigError(
            f"{name} ends at {chosen[-1]}, and steps of up to {planned[-1]} have graphs now",
            fix=f"keep {planned[-1]}, or the largest steps would all run eagerly",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Resizing:
    """The sizes of one callable: which would suit its traffic, and the change to others."""

    config: GraphConfig
    mode: ResolvedMode
    bus: EventBus
    service: KeyService
    late: LateCapture
    max_sizes: Sizes
    """That the static buffers hold."""
    max_captured_tokens: int
    """Of a suggested size: a longer step would gain nothing by a graph."""

    def suggest(
        self,
        counters: DispatchCounters,
        *,
        min_steps: int,
        min_saved_percent: float,
        costs: Mapping[str, Callable[[int], float]] | None,
    ) -> SizeSuggestion:
        """Sizes for the steps that ``counters`` have seen; see `Graphed.suggest_sizes`."""
        most, longest = self.max_sizes, max(self.config.uniform_query_lens)
        return suggest_sizes(
            PlannedSizes.of(self.service.keys),
            {"decode": counters.decode_sizes, "mixed": counters.mixed_sizes},
            limits={
                "decode": min(most[NUM_REQS], most[NUM_TOKENS] // longest),
                "mixed": self.max_captured_tokens,
            },
            min_steps=min_steps,
            min_saved_percent=min_saved_percent,
            multiple=self.config.size_multiple,
            costs=costs,
        )

    def target(self, *, sizes: tuple[int, ...] | None, decode_sizes: tuple[int, ...] | None) -> list[GraphKey]:
        """The keys that other sizes mean; None leaves a kind. Raises what `changed_sizes` does."""
        most = self.max_sizes
        config = changed_sizes(self.config, self.service.keys, sizes=sizes, decode_sizes=decode_sizes, max_sizes=most)
        return plan_reported(config, self.mode, max_tokens=most[NUM_TOKENS], bus=self.bus)

    def apply(self, target: Sequence[GraphKey], *, on_key: Callable[[GraphKey], None] | None) -> ResizeReport:
        """Make the planned keys ``target``, or all that there are and those of ``target`` that could be captured."""
        began = time.perf_counter()
        kept = self.service.kept()
        planned = self.service.keys
        new = [key for key in largest_first(target) if key not in set(planned)]
        cold = [key for key in planned if key not in set(target)]
        report, plans = self.late.capture(new, on_key=on_key)
        retired = [] if report.failed else cold
        self.service.swap(plans, retired, kept=kept)
        return ResizeReport(
            added=list(plans),
            retired=retired,
            failed=report.failed,
            seconds=time.perf_counter() - began,
            costs=report.costs,
        )
