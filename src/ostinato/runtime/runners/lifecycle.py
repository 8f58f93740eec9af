"""Warm up all keys, then capture all keys: largest first, each key a transaction.

Warm-up of every key comes before capture of any, because lazy initialisation and workspace growth in a late
warm-up would move memory that an early graph has baked in. A key that fails is dropped alone.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ostinato.errors import CaptureError, OstinatoError
from ostinato.runtime.capture import CaptureBackend, DeviceUsage
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.memory import CaptureCost
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.telemetry import BreaksMissing, CaptureFailed, EventBus, GraphCaptured

__all__ = ["CaptureReport", "capture_all"]


@dataclass(slots=True, kw_only=True)
class CaptureReport:
    """What bulk capture did. ``seconds`` is wall time over all keys."""

    captured: list[GraphKey] = field(default_factory=list)
    failed: dict[GraphKey, Exception] = field(default_factory=dict)
    seconds: float = 0.0
    costs: dict[GraphKey, CaptureCost] = field(default_factory=dict)
    """What each captured key has taken of the device, in the order of capture."""

    @property
    def first_error(self) -> Exception | None:
        """The error of the first key that failed, as it was raised."""
        return next(iter(self.failed.values()), None)

    def require_any(self) -> None:
        """Raise if keys have failed and none was captured.

        Raises:
            CaptureError: the first key's error is its cause, or is raised itself if it is an `OstinatoError` already.
        """
        if self.failed and not self.captured:
            first = self.first_error
            if isinstance(first, OstinatoError):
                raise first
            raise CaptureError("no key could be captured", fix="see the cause; it is the first key's error") from first


def capture_all(
    keys: Iterable[GraphKey],
    capture_one: Callable[[GraphKey], CapturedPlan],
    *,
    backend: CaptureBackend,
    bus: EventBus,
    on_done: Callable[[GraphKey, CapturedPlan | None], None],
    is_brief: bool = False,
) -> CaptureReport:
    """Capture ``keys`` in the given order inside one capture phase.

    Args:
        capture_one: captures one key, all or nothing.
        on_done: told of each key, with its plan or None if it failed.
        is_brief: steps wait; see `CaptureBackend.phase`.
    """
    report = CaptureReport()
    start = time.perf_counter()
    with backend.phase(is_brief=is_brief):
        for key in keys:
            began, usage = time.perf_counter(), backend.usage()
            try:
                plan = capture_one(key)
            except Exception as error:  # whatever the callable raises harms its own key alone
                _let_go_of_locals(error)
                report.failed[key] = error
                bus.emit(CaptureFailed(key=str(key), error=str(error)))
                on_done(key, None)
                continue
            report.captured.append(key)
            seconds = time.perf_counter() - began
            report.costs[key] = _cost(key, usage, backend.usage(), seconds)
            bus.emit(GraphCaptured(key=str(key), seconds=seconds, segments=plan.num_segments, nodes=plan.num_nodes))
            if plan.num_missing_breaks:
                got = len(plan.breaks)
                bus.emit(BreaksMissing(key=str(key), expected=got + plan.num_missing_breaks, got=got))
            on_done(key, plan)
    report.seconds = time.perf_counter() - start
    return report


def _cost(key: GraphKey, before: DeviceUsage, after: DeviceUsage, seconds: float) -> CaptureCost:
    # A capture may let go of memory that was cached for others: that is no negative cost.
    return CaptureCost(
        kind=key.kind,
        num_tokens=key.num_tokens,
        pool_bytes=max(0, after.allocator_bytes - before.allocator_bytes),
        live_bytes=max(0, after.live_bytes - before.live_bytes),
        driver_bytes=max(0, after.driver_bytes - before.driver_bytes),
        seconds=seconds,
    )


def _let_go_of_locals(error: BaseException) -> None:
    """Empty the frames that ``error`` came through: they hold the failed capture's memory as long as it is kept.

    Files and lines stay in its traceback, and what led to it stays chained.
    """
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            chain += [link.__cause__, link.__context__]
