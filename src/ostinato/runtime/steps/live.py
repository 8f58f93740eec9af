"""`LiveSteps`: one step on live inputs, from the decision to delivered outputs.

Brings inputs into the static buffers, checks guards, replays or runs eagerly, and reports the step. What else than
raising follows when guards find something, `Recaptures` knows. This is the hot path: each line here is paid by every
step. Called by the facade, and by whoever times its steps.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import torch

from ostinato.errors import AddressChangedError
from ostinato.runtime.breaks import is_planning, is_recording
from ostinato.runtime.buffers import Sizes, live_sizes
from ostinato.runtime.dispatch import Decision, Dispatcher, Reason, Rejection, decision_for
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.qualify import Qualifier
from ostinato.runtime.runners import CapturedKeys, CapturedPlan, Delivery, StepLock, WrappedCallable, run_eager
from ostinato.runtime.stages import Life

__all__ = ["LiveSteps", "no_grad"]

_NOTHING: Final = nullcontext()


class Recaptures(Protocol):
    """Captures keys anew when what they read has moved. Called under the step lock, but for `is_wanted`."""

    def withdraw(self, key: GraphKey, error: AddressChangedError) -> None:
        """No step uses the graph of ``key`` any more."""
        ...

    def is_wanted(self, decision: Decision) -> bool:
        """Whether `recapture_for` would have anything to do."""
        ...

    def recapture_for(self, live: LiveBatch) -> Decision:
        """The decision for ``live``, once what it would rather use is captured anew. Writes into the static buffers."""
        ...


class LiveSteps:
    """Steps of one callable, one at a time.

    Args:
        wrapped: the callable.
        life: steps are refused once it is over.
        lock: held while a step runs.
        dispatcher: decides, and is told of each step.
        captured: what is replayed.
        delivery: of what was replayed.
        qualifier: has the shadow that looks at replays.
        recaptures: None: a step whose guards find something raises.
    """

    def __init__(
        self,
        wrapped: WrappedCallable,
        *,
        life: Life,
        lock: StepLock,
        dispatcher: Dispatcher,
        captured: CapturedKeys,
        delivery: Delivery,
        qualifier: Qualifier,
        recaptures: Recaptures | None = None,
    ) -> None:
        self._wrapped = wrapped
        self._life = life
        self._lock = lock
        self._dispatcher = dispatcher
        self._captured = captured
        self._delivery = delivery
        self._qualifier = qualifier
        self._recaptures = recaptures

    def decide(self, live: LiveBatch) -> Decision:
        """See `Graphed.decide`."""
        self._life.require_open()
        return self._dispatcher.decide(live)

    def explain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision:
        """See `Graphed.explain`."""
        return self.decide(self._wrapped.live_batch(self._wrapped.split(args, kwargs)))

    def sizes(self, decision: Decision) -> Sizes:
        """See `Graphed.sizes`."""
        return live_sizes(decision.live) if decision.key is None else self._wrapped.key_sizes(decision.key)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `Graphed.__call__`."""
        if is_planning() or is_recording():
            return self._wrapped.fn(*args, **kwargs)
        if self._qualifier.shadow is not None:
            self._qualifier.finish_shadow()
        return self.copied(args, kwargs)

    def copied(self, args: tuple[Any, ...], kwargs: dict[str, Any], decision: Decision | None = None) -> Any:
        """A step on the caller's tensors, by ``decision`` if that is made already."""
        wrapped = self._wrapped
        found = wrapped.split(args, kwargs)
        live = wrapped.live_batch(found)
        is_made = decision is not None
        decision = decision or self.decide(live)
        if self._recaptures is not None and not is_made and self._recaptures.is_wanted(decision):
            with self._lock, torch.no_grad():
                self._life.require_open()
                decision = self._recaptures.recapture_for(live)
        if decision.key is not None:
            with self._lock, torch.no_grad():
                if not is_made:
                    decision = self._dispatcher.decide(live)  # keys may have gone while the lock was waited for
                if decision.key is not None:
                    wrapped.load(found, live, wrapped.key_sizes(decision.key))
                    plan = self._replay(decision.key, decision)
                    if plan is not None:
                        return self._delivery.deliver(plan, live.num_tokens)
                    decision = _moved(decision, decision.key)
        with torch.no_grad():
            return self._run_eagerly(decision, lambda: wrapped.fn(*args, **kwargs))

    def run(self, decision: Decision, *, on_other: Callable[[Decision], None] | None = None) -> Any:
        """See `Graphed.run`."""
        with self._lock, no_grad():
            if decision.key is not None:
                plan = self._replay(decision.key, decision)
                if plan is not None:
                    return self._delivery.lend(plan, decision.live.num_tokens)
                return self._run_in_place(decision, decision.key, on_other)
            fn = self._wrapped.fn
            args, kwargs = self._wrapped.arguments(self.sizes(decision))
            return self._run_eagerly(decision, lambda: fn(*args, **kwargs))

    def _run_in_place(self, decision: Decision, key: GraphKey, on_other: Callable[[Decision], None] | None) -> Any:
        """A step that was to replay ``key``, run eagerly on the buffers as they are: at the padded sizes."""
        resume = self._qualifier.owner().resume(key)
        eager = dataclasses.replace(
            _moved(decision, key), padded_tokens=decision.padded_tokens, padded_reqs=decision.padded_reqs
        )
        if on_other is not None:
            on_other(eager)
        with resume():
            outputs = self._run_eagerly(eager, self._wrapped.bind(key))
        return self._delivery.lend_eager(outputs, decision.live.num_tokens)

    def _run_eagerly(self, decision: Decision, call: Callable[[], Any]) -> Any:
        self._life.require_open()
        began = time.perf_counter()
        try:
            return run_eager(call)
        finally:
            self._dispatcher.record(decision, time.perf_counter() - began)

    def _replay(self, key: GraphKey, decision: Decision) -> CapturedPlan | None:
        """The plan that was replayed: its outputs are those of the step. None: it was withdrawn, nothing has run."""
        self._life.require_open()
        plan = self._captured.plan_of(key)
        live = decision.live
        shadow = self._qualifier.shadow
        try:
            self._wrapped.buffers.check_addresses()
            try:
                self._captured.check(key)
            except AddressChangedError as error:
                if self._recaptures is None:
                    raise
                self._recaptures.withdraw(key, error)
                return None
            began = time.perf_counter()
            if shadow is None:
                plan.replay(live.num_tokens)
            else:
                shadow.replayed(plan, live, self.sizes(decision))
        except Exception as error:
            self._dispatcher.record_failure(key, error)
            raise
        self._dispatcher.record(decision, time.perf_counter() - began)
        return plan


def _moved(decision: Decision, key: GraphKey) -> Decision:
    """To run eagerly what ``decision`` would have replayed by ``key``."""
    return decision_for(decision.live, None, alternatives=(*decision.alternatives, Rejection(str(key), Reason.MOVED)))


def no_grad() -> AbstractContextManager[None]:
    """Gradients off; free where they are off already, since torch's own context costs as much as a launch."""
    return torch.no_grad() if torch.is_grad_enabled() else _NOTHING
