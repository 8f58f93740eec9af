"""`MadeUpRuns`: one key on inputs that no user's batch stands behind: warm-up and capture.

The rows are safe values and the metadata is the owner's, built anew by its hook before each run. Used by warm-up,
capture, a change of sizes, qualification and measuring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ostinato.errors import InputSpecError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Sizes
from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.runners.delivery import Delivery
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.runner import Runner
from ostinato.runtime.runners.wrapped import WrappedCallable

__all__ = ["MadeUpRuns"]


class MadeUpRuns:
    """Runs and captures ``wrapped`` on its static buffers. The caller holds the step lock, with gradients off.

    Args:
        wrapped: the callable.
        runners: by runtime mode.
        delivery: learns from warm-up.
        num_warm_ups: runs of each key before its capture.
        prepare: see `Graphed`.
        after_warm_up: see `Graphed`.
    """

    def __init__(
        self,
        wrapped: WrappedCallable,
        runners: Mapping[RuntimeMode, Runner],
        *,
        delivery: Delivery,
        num_warm_ups: int,
        prepare: Callable[[GraphKey], None] | None = None,
        after_warm_up: Callable[[], None] | None = None,
    ) -> None:
        self.wrapped = wrapped
        self.runners = runners
        self.num_warm_ups = num_warm_ups
        self.after_warm_up = after_warm_up
        self._delivery = delivery
        self._prepare = prepare

    @property
    def is_prepared(self) -> bool:
        """Whether a hook makes metadata for keys, which fits batches of just their size."""
        return self._prepare is not None

    def prepare(self, key: GraphKey) -> None:
        """Have the owner's metadata for ``key`` built anew, if there is a hook for it."""
        if self._prepare is not None:
            self._prepare(key)

    def make_ready(self, key: GraphKey, sizes: Sizes | None = None) -> None:
        """Safe values in all rows, and fresh metadata. ``sizes``: the padded ones, by default those of ``key``."""
        buffers = self.wrapped.buffers
        buffers.arena.zero_()  # fixed-shape slots have no tail to pad, and other layouts were written here
        buffers.pad({NUM_TOKENS: 0, NUM_REQS: 0}, sizes or self.wrapped.key_sizes(key))
        self.prepare(key)

    def warm_up(self, key: GraphKey) -> None:
        """Run ``key`` eagerly once.

        Raises:
            InputSpecError: the callable writes into its arguments.
        """
        self.make_ready(key)
        arena = self.wrapped.buffers.arena
        version = arena._version
        outputs = self.runners[key.runtime_mode].warm_up(key, self.wrapped.bind(key))
        if arena._version != version:
            raise InputSpecError(
                "the callable writes into its arguments; a replay would write into its own buffers instead",
                fix="clone the argument inside the callable, and return the result",
            )
        self._delivery.observe(outputs, key.num_tokens)

    def warm_up_all(self, keys: Sequence[GraphKey], *, on_key: Callable[[GraphKey], None] | None) -> None:
        """Run ``keys`` eagerly, in their order, as often as it takes. ``on_key`` is told of each in its last run."""
        for run in range(self.num_warm_ups):
            for key in keys:
                self.warm_up(key)
                if on_key is not None and run == self.num_warm_ups - 1:
                    on_key(key)
            self.warm_up_witness(keys)

    def capture(self, key: GraphKey) -> CapturedPlan:
        """Capture ``key``, all or nothing."""
        self.make_ready(key)
        return self.capture_as_is(key)

    def capture_as_is(self, key: GraphKey) -> CapturedPlan:
        """Capture ``key`` on what the buffers hold."""
        return self.runners[key.runtime_mode].capture(key, self.wrapped.bind(key))

    def warm_up_witness(self, keys: Sequence[GraphKey]) -> None:
        """With one bucket, run one size more: else a state tensor of as many rows would pass for a batch."""
        sizes = {key.num_tokens for key in keys}
        if len(sizes) == 1 and max(sizes) > 1 and not self.is_prepared:
            self.warm_up(dataclasses.replace(keys[0], num_tokens=max(sizes) - 1))
