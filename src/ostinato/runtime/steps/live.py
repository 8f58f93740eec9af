"""`LiveSteps`: one step on live inputs, from the decision to delivered outputs.

Brings inputs into the static buffers, checks guards, replays or runs eagerly, and reports the step. This is the hot
path: each line here is paid by every step. Called by the facade, and by whoever times its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from ostinato.runtime.breaks import is_planning, is_recording
from ostinato.runtime.buffers import Sizes, live_sizes
from ostinato.runtime.dispatch import Decision, Dispatcher
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.qualify import Qualifier
from ostinato.runtime.runners import CapturedKeys, CapturedPlan, Delivery, StepLock, WrappedCallable, run_eager
from ostinato.runtime.stages import Life

__all__ = ["LiveSteps", "no_grad"]

_NOTHING: Final = nullcontext()


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
    ) -> None:
        self._wrapped = wrapped
        self._life = life
        self._lock = lock
        self._dispatcher = dispatcher
        self._captured = captured
        self._delivery = delivery
        self._qualifier = qualifier

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
        if decision.key is not None:
            with self._lock, torch.no_grad():
                if not is_made:
                    decision = self._dispatcher.decide(live)  # keys may have gone while the lock was waited for
                if decision.key is not None:
                    wrapped.load(found, live, wrapped.key_sizes(decision.key))
                    return self._delivery.deliver(self._replay(decision.key, decision), live.num_tokens)
        with torch.no_grad():
            return self._run_eagerly(decision, lambda: wrapped.fn(*args, **kwargs))

    def run(self, decision: Decision) -> Any:
        """See `Graphed.run`."""
        with self._lock, no_grad():
            if decision.key is not None:
                return self._delivery.lend(self._replay(decision.key, decision), decision.live.num_tokens)
            fn = self._wrapped.fn
            args, kwargs = self._wrapped.arguments(self.sizes(decision))
            return self._run_eagerly(decision, lambda: fn(*args, **kwargs))

    def _run_eagerly(self, decision: Decision, call: Callable[[], Any]) -> Any:
        self._life.require_open()
        began = time.perf_counter()
        try:
            return run_eager(call)
        finally:
            self._dispatcher.record(decision, time.perf_counter() - began)

    def _replay(self, key: GraphKey, decision: Decision) -> CapturedPlan:
        """The plan that was replayed: its outputs are those of the step."""
        self._life.require_open()
        plan = self._captured.plan_of(key)
        live = decision.live
        shadow = self._qualifier.shadow
        try:
            self._wrapped.buffers.check_addresses()
            self._captured.check(key)
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


def no_grad() -> AbstractContextManager[None]:
    """Gradients off; free where they are off already, since torch's own context costs as much as a launch."""
    return torch.no_grad() if torch.is_grad_enabled() else _NOTHING
