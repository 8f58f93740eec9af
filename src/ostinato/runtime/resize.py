"""Other sizes while running: capture the new keys, then retire the cold ones, between two steps.

A transaction: a key that cannot be warmed up or captured is dropped alone, and then nothing is retired, so that no step
finds less than before. The callable's state and the random generators are as if the made-up steps had not been; what
its breaks do on the host is not undone. Called by `Graphed.resize`, which holds its lock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ostinato.errors import ConfigError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import Dispatcher
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.memory import CaptureCost
from ostinato.runtime.planning import PlannedSizes, largest_first
from ostinato.runtime.runners import CapturedKeys, CapturedPlan, capture_all
from ostinato.telemetry import EventBus, GraphClosed

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
    """What a change of sizes needs of a `Graphed`."""

    backend: CaptureBackend
    bus: EventBus
    dispatcher: Dispatcher
    captured: CapturedKeys
    num_warm_up_runs: int
    warm_up_one: Callable[[GraphKey], None]
    after_warm_up: Callable[[], None] | None
    capture_one: Callable[[GraphKey], CapturedPlan]
    state_kept: Callable[[GraphKey], AbstractContextManager[None]]
    """Puts back what a made-up step of a key writes."""
    watch: Callable[[], None]
    """Guards the plans that were added."""

    def apply(self, target: Sequence[GraphKey], *, on_key: Callable[[GraphKey], None] | None) -> ResizeReport:
        """Make the planned keys ``target``, or all that there are and those of ``target`` that could be captured."""
        began = time.perf_counter()
        planned = self.dispatcher.keys
        new = [key for key in largest_first(target) if key not in set(planned)]
        cold = [key for key in planned if key not in set(target)]
        plans: dict[GraphKey, CapturedPlan] = {}

        def done(key: GraphKey, plan: CapturedPlan | None) -> None:
            if plan is not None:
                plans[key] = plan
            if on_key is not None:
                on_key(key)

        unfit = self._warm_up(new)
        try:
            report = capture_all(
                new, lambda key: self._capture(key, unfit), backend=self.backend, bus=self.bus, on_done=done
            )
        except BaseException:  # an interrupt: all is as it was
            for plan in plans.values():
                plan.close()
            raise
        retired = [] if report.failed else cold
        self.dispatcher.replace_keys(largest_first([key for key in [*planned, *plans] if key not in set(retired)]))
        for key in retired:
            self.captured.drop(key)
            self.bus.emit(GraphClosed(key=str(key), reason="retired"))
        for key, plan in plans.items():
            self.captured.add(key, plan)
        self.captured.reorder(self.dispatcher.keys)
        self.watch()
        for key in plans:
            self.dispatcher.mark_captured(key)
        seconds = time.perf_counter() - began
        return ResizeReport(
            added=list(plans), retired=retired, failed=report.failed, seconds=seconds, costs=report.costs
        )

    def _warm_up(self, keys: Sequence[GraphKey]) -> dict[GraphKey, Exception]:
        """Run ``keys`` eagerly; the errors of those that cannot be."""
        unfit: dict[GraphKey, Exception] = {}
        for _ in range(self.num_warm_up_runs):
            for key in keys:
                if key not in unfit:
                    try:
                        with self.state_kept(key):
                            self.warm_up_one(key)
                    except Exception as error:
                        unfit[key] = error
        if keys and self.after_warm_up is not None:
            with self.state_kept(keys[0]):  # it may clear what steps have written since
                self.after_warm_up()
        return unfit

    def _capture(self, key: GraphKey, unfit: Mapping[GraphKey, Exception]) -> CapturedPlan:
        if key in unfit:
            raise unfit[key]
        with self.state_kept(key):
            return self.capture_one(key)
