"""`KeyService`: keys are planned, come into service, one capture each, and go out of it.

Keeps the dispatcher, the plans, their guards and what they may lend in step with each other. Called by the facade and
by a change of sizes, which hold the step lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ostinato.errors import AddressChangedError
from ostinato.runtime.buffers import BridgePool, Place
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import Dispatcher, Reason, ResolvedMode
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.planning import largest_first, plan_keys
from ostinato.runtime.runners import (
    CapturedKeys,
    CapturedPlan,
    CaptureReport,
    Delivery,
    WrappedCallable,
    capture_all,
)
from ostinato.telemetry import EventBus, GraphClosed, KeyDropped, TensorMoved

__all__ = ["KeyService", "plan_reported"]


_WAITING: Final = (Reason.NOT_CAPTURED_YET, Reason.MOVED)


def plan_reported(config: GraphConfig, mode: ResolvedMode, *, max_tokens: int, bus: EventBus) -> list[GraphKey]:
    """The keys that ``config`` asks for, largest first; ``bus`` is told of each that cannot be."""
    return plan_keys(
        config,
        mode.mode,
        max_size=max_tokens,
        full_mixed_max_tokens=mode.full_mixed_max_tokens,
        on_drop=lambda key, why: bus.emit(KeyDropped(key=str(key), reason=why)),
    )


class KeyService:
    """The keys of one callable.

    Args:
        wrapped: the callable.
        backend: which captures.
        bus: told of each key that comes and goes.
        dispatcher: chooses among the keys in service.
        captured: owns their plans.
        delivery: lends their outputs.
        bridges: of all plans.
    """

    def __init__(
        self,
        wrapped: WrappedCallable,
        *,
        backend: CaptureBackend,
        bus: EventBus,
        dispatcher: Dispatcher,
        captured: CapturedKeys,
        delivery: Delivery,
        bridges: BridgePool,
    ) -> None:
        self._wrapped = wrapped
        self._backend = backend
        self._bus = bus
        self._dispatcher = dispatcher
        self._captured = captured
        self._delivery = delivery
        self._bridges = bridges

    @property
    def keys(self) -> list[GraphKey]:
        """Planned keys, largest first."""
        return self._dispatcher.keys

    def capture(
        self, capture_one: Callable[[GraphKey], CapturedPlan], *, on_key: Callable[[GraphKey], None] | None
    ) -> CaptureReport:
        """Capture every pending key, largest first; a key that fails is blocked alone."""

        def done(key: GraphKey, plan: CapturedPlan | None) -> None:
            if plan is None:
                self._dispatcher.block(key, Reason.CAPTURE_FAILED)
            else:
                self._captured.add(key, plan)
                self._dispatcher.mark_captured(key)
            if on_key is not None:
                on_key(key)

        kept = self.kept()
        report = self.capture_aside(self.pending(), capture_one, on_done=done, is_brief=False)
        self._watch(kept)
        return report

    def capture_aside(
        self,
        keys: Iterable[GraphKey],
        capture_one: Callable[[GraphKey], CapturedPlan],
        *,
        on_done: Callable[[GraphKey, CapturedPlan | None], None],
        is_brief: bool,
    ) -> CaptureReport:
        """Capture ``keys``, which do not come into service by that; see `capture_all`."""
        return capture_all(keys, capture_one, backend=self._backend, bus=self._bus, on_done=on_done, is_brief=is_brief)

    def swap(self, added: Mapping[GraphKey, CapturedPlan], retired: Sequence[GraphKey], *, kept: list[Place]) -> None:
        """Put ``added`` into service and give the graphs of ``retired`` back. ``kept``: from before the captures."""
        gone = set(retired)
        staying = dict.fromkeys(key for key in [*self.keys, *added] if key not in gone)
        self._dispatcher.replace_keys(largest_first(list(staying)))
        for key in retired:
            if key in self._captured.plans:  # others were still waiting for their capture
                self._captured.drop(key)
                self._bus.emit(GraphClosed(key=str(key), reason="retired"))
        for key, plan in added.items():
            self._captured.add(key, plan)
        self._captured.reorder(self.keys)
        self._watch(kept)
        for key in added:
            self._dispatcher.mark_captured(key)

    def pending(self) -> list[GraphKey]:
        """Planned keys that wait for their capture, largest first."""
        waiting = {key for key, reason in self._dispatcher.blocked.items() if reason in _WAITING}
        # An engine asks before each step, and nearly always none does.
        return [key for key in self.keys if key in waiting] if waiting else []

    def leave_out(self, key: GraphKey, reason: Reason, why: str) -> None:
        """Do not capture ``key``."""
        self._dispatcher.block(key, reason)
        self._bus.emit(KeyDropped(key=str(key), reason=f"{reason}: {why}"))

    def retire(self, keys: Sequence[GraphKey], why: str) -> None:
        """Take ``keys`` out of service and out of the plan."""
        self.swap({}, keys, kept=self.kept())
        for key in keys:
            self._bus.emit(KeyDropped(key=str(key), reason=why))

    def give_up(self, keys: Iterable[GraphKey]) -> None:
        """``keys`` could not be captured; they are not tried again."""
        for key in keys:
            self._dispatcher.block(key, Reason.CAPTURE_FAILED)

    def find_moved(self) -> dict[GraphKey, AddressChangedError]:
        """See `CapturedKeys.find_moved`."""
        return self._captured.find_moved()

    def withdraw(self, moved: Mapping[GraphKey, AddressChangedError]) -> None:
        """Give the graphs of ``moved`` back, which are all that read something moved; they wait for another capture."""
        for key, error in moved.items():
            error.__traceback__ = None  # its frames hold the guards, whose owners are counted below
            self._captured.drop(key)
            if self._dispatcher.usable(key):  # a quarantine outlives it
                self._dispatcher.block(key, Reason.MOVED)
            self._bus.emit(TensorMoved(key=str(key), what=str(error)))
            self._bus.emit(GraphClosed(key=str(key), reason="moved"))
        self._captured.settle()

    def release(self) -> None:
        """Give all graphs back; the keys stay planned."""
        self._captured.clear()
        for key in self.keys:
            self._dispatcher.block(key, Reason.NOT_CAPTURED_YET)
            self._bus.emit(GraphClosed(key=str(key), reason="released"))

    def kept(self) -> list[Place]:
        """What the callable keeps. Held from before a capture to its end: so no graph is given that memory."""
        return [*self._wrapped.own_places(), *self._wrapped.state_places()]

    def _watch(self, kept: Sequence[Place]) -> None:
        """Guard what the plans read, as it lies now."""
        wrapped = self._wrapped
        known = {wrapped.buffers.arena.untyped_storage().data_ptr(), *self._bridges.addresses}
        self._captured.watch(wrapped.own_places(), wrapped.state_places(), known=known)
        self._delivery.leave(place.tensor for place in kept)
