"""`MadeUpSteps`: steps to time for any callable, on the batches with which it is warmed up.

Rows are random where they are floats and safe indices elsewhere. A callable with a ``prepare`` hook runs on the static
buffers, as an engine's steps do; any other is called like the callable, its inputs copied in and its outputs out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Sizes, live_sizes
from ostinato.runtime.dispatch import BatchKind, Decision, StepRun
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.runners import MadeUpRuns
from ostinato.runtime.steps.live import LiveSteps

__all__ = ["MadeUpSteps"]

_SEED = 20261129


class MadeUpSteps:
    """`StepsToTime` of a `Graphed`.

    Args:
        live: runs them.
        runs: make their inputs.
        state: see `StepsToTime.state`.
        max_num_reqs: None if the callable knows no requests.
        planned: keys that a hook of the owner's knows.
    """

    def __init__(
        self,
        live: LiveSteps,
        runs: MadeUpRuns,
        *,
        state: Mapping[str, torch.Tensor],
        max_num_reqs: int | None,
        planned: frozenset[GraphKey],
    ) -> None:
        self._live = live
        self._runs = runs
        self._wrapped = runs.wrapped
        self._state = dict(state)
        self._max_num_reqs = max_num_reqs
        self._planned = planned

    def state(self) -> Mapping[str, torch.Tensor]:
        """See `StepsToTime.state`."""
        return self._state

    def live(self, kind: BatchKind, key: GraphKey) -> LiveBatch | None:
        """See `StepsToTime.live`."""
        padded, query_len = self._wrapped.key_sizes(key), kind.uniform_query_len
        if query_len is None:
            num_tokens, num_reqs = key.num_tokens, None if self._max_num_reqs is None else padded[NUM_REQS]
        else:
            num_reqs = min(key.num_tokens // query_len, padded[NUM_REQS])
            num_tokens = num_reqs * query_len
        is_other = {NUM_TOKENS: num_tokens, NUM_REQS: padded[NUM_REQS] if num_reqs is None else num_reqs} != padded
        is_other |= key not in self._planned or key.uniform_query_len != query_len
        if not num_tokens or (self._runs.is_prepared and is_other):
            return None
        return LiveBatch(
            num_tokens=num_tokens, num_reqs=num_reqs, uniform_query_len=query_len, context_tokens=kind.kv_tier
        )

    def step(self, decision: Decision, like: GraphKey) -> StepRun:
        """See `StepsToTime.step`."""
        if self._runs.is_prepared:
            sizes = self._live.sizes(decision)
            return StepRun(lambda: _fill(self._inputs(like, sizes)), lambda: self._live.run(decision))
        values = {name: view.clone() for name, view in self._inputs(like, live_sizes(decision.live)).items()}
        _fill(values)
        bound = self._wrapped.bind_to(values)
        return StepRun(lambda: None, lambda: self._live.copied(bound.args, bound.kwargs, decision))

    def _inputs(self, key: GraphKey, sizes: Sizes) -> Mapping[str, torch.Tensor]:
        """The static buffers at ``sizes``, with safe values in all rows and metadata for ``key``."""
        self._runs.make_ready(key, sizes)
        return self._wrapped.buffers.views(sizes)


def _fill(values: Mapping[str, torch.Tensor]) -> None:
    random = torch.Generator().manual_seed(_SEED)
    for value in values.values():
        if value.dtype.is_floating_point:
            value.copy_(torch.randn(value.shape, generator=random))
