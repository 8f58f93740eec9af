"""Graphs captured between live steps: the callable's state is as if the made-up steps had not been.

What its breaks do on the host is not undone. Used by a change of sizes and by capture in the background, which hold the
step lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ostinato.runtime.buffers import NUM_REQS
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.qualify import Qualifier, ShadowOwner
from ostinato.runtime.runners import CapturedPlan, CaptureReport, MadeUpRuns, generators_kept, state_kept
from ostinato.runtime.service import KeyService

__all__ = ["LateCapture"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LateCapture:
    """Warms keys up and captures them."""

    service: KeyService
    runs: MadeUpRuns
    qualifier: Qualifier
    """Knows who knows what a made-up step writes: it is put back."""

    def capture(
        self, keys: Sequence[GraphKey], *, on_key: Callable[[GraphKey], None] | None, is_again: bool = False
    ) -> tuple[CaptureReport, dict[GraphKey, CapturedPlan]]:
        """Warm up ``keys``, then capture them, in their order; a key that fails is dropped alone.

        Nothing comes into service by that; after an interrupt nothing is left. ``is_again``: all were captured before,
        so that no other size has to show what follows the batch.
        """
        owner = self.qualifier.owner()
        plans: dict[GraphKey, CapturedPlan] = {}

        def done(key: GraphKey, plan: CapturedPlan | None) -> None:
            if plan is not None:
                plans[key] = plan
            if on_key is not None:
                on_key(key)

        unfit = self._warm_up(keys, owner, is_again=is_again)
        try:
            report = self.service.capture_aside(
                keys, lambda key: self._capture(key, unfit, owner), on_done=done, is_brief=True
            )
        except BaseException:  # an interrupt: all is as it was
            for plan in plans.values():
                plan.close()
            raise
        return report, plans

    def _warm_up(self, keys: Sequence[GraphKey], owner: ShadowOwner, *, is_again: bool) -> dict[GraphKey, Exception]:
        """Run ``keys`` eagerly; the errors of those that cannot be."""
        unfit: dict[GraphKey, Exception] = {}
        for _ in range(self.runs.num_warm_ups):
            for key in keys:
                if key not in unfit:
                    try:
                        with self._state_kept(key, owner):
                            self.runs.warm_up(key)
                    except Exception as error:
                        unfit[key] = error
        fit = [] if is_again else [key for key in keys if key not in unfit]
        if fit:
            with self._state_kept(fit[0], owner):
                self.runs.warm_up_witness(fit)
        if keys and self.runs.after_warm_up is not None:
            with self._state_kept(keys[0], owner):  # it may clear what steps have written since
                self.runs.after_warm_up()
        return unfit

    def _capture(self, key: GraphKey, unfit: Mapping[GraphKey, Exception], owner: ShadowOwner) -> CapturedPlan:
        if key in unfit:
            raise unfit[key]
        with self._state_kept(key, owner):
            return self.runs.capture(key)

    @contextmanager
    def _state_kept(self, key: GraphKey, owner: ShadowOwner) -> Iterator[None]:
        """Put back what a made-up step of ``key`` writes."""
        self.runs.make_ready(key)  # the owner looks at the made-up step
        wrapped = self.runs.wrapped
        live = LiveBatch(num_tokens=key.num_tokens, num_reqs=wrapped.key_sizes(key)[NUM_REQS])
        with (
            state_kept(owner.written(key, live)),
            generators_kept(wrapped.device, self.qualifier.subject.backend.generators),
        ):
            yield
