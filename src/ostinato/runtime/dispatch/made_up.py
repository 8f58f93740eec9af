"""`MadeUpSteps`: steps to time for any callable, on the batches with which it is warmed up.

Rows are random where they are floats and safe indices elsewhere. A callable with a ``prepare`` hook runs on the static
buffers, as an engine's steps do; any other is called like the callable, its inputs copied in and its outputs out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Sizes, live_sizes
from ostinato.runtime.dispatch.costs import BatchKind
from ostinato.runtime.dispatch.decision import Decision
from ostinato.runtime.dispatch.measure import StepRun
from ostinato.runtime.keys import GraphKey, LiveBatch

__all__ = ["MadeUpSteps"]

_SEED = 20261129


class MadeUpSteps:
    """`StepsToTime` of a `Graphed`.

    Args:
        inputs: the static buffers at some sizes, with safe values in all rows and metadata for a key.
        sizes_of: padded sizes of a key.
        sizes: padded sizes of a decision.
        run: a step on the static buffers.
        call: makes a step on tensors of the caller's own, by name.
        state: see `StepsToTime.state`.
        max_num_reqs: None if the callable knows no requests.
        is_prepared: whether there is a hook that makes metadata for keys, which fits batches of just their size.
    """

    def __init__(
        self,
        *,
        inputs: Callable[[GraphKey, Sizes], Mapping[str, torch.Tensor]],
        sizes_of: Callable[[GraphKey], Sizes],
        sizes: Callable[[Decision], Sizes],
        run: Callable[[Decision], Any],
        call: Callable[[Mapping[str, torch.Tensor], Decision], Callable[[], Any]],
        state: Mapping[str, torch.Tensor],
        max_num_reqs: int | None,
        is_prepared: bool,
    ) -> None:
        self._inputs = inputs
        self._sizes_of = sizes_of
        self._sizes = sizes
        self._run = run
        self._call = call
        self._state = dict(state)
        self._max_num_reqs = max_num_reqs
        self._is_prepared = is_prepared

    def state(self) -> Mapping[str, torch.Tensor]:
        """See `StepsToTime.state`."""
        return self._state

    def live(self, kind: BatchKind, key: GraphKey) -> LiveBatch | None:
        """See `StepsToTime.live`."""
        padded, query_len = self._sizes_of(key), kind.uniform_query_len
        if query_len is None:
            num_tokens, num_reqs = key.num_tokens, None if self._max_num_reqs is None else padded[NUM_REQS]
        else:
            num_reqs = min(key.num_tokens // query_len, padded[NUM_REQS])
            num_tokens = num_reqs * query_len
        is_other = {NUM_TOKENS: num_tokens, NUM_REQS: padded[NUM_REQS] if num_reqs is None else num_reqs} != padded
        if not num_tokens or (self._is_prepared and (is_other or key.uniform_query_len != query_len)):
            return None
        return LiveBatch(
            num_tokens=num_tokens, num_reqs=num_reqs, uniform_query_len=query_len, context_tokens=kind.kv_tier
        )

    def step(self, decision: Decision, like: GraphKey) -> StepRun:
        """See `StepsToTime.step`."""
        if self._is_prepared:
            return StepRun(lambda: self._fill(self._inputs(like, self._sizes(decision))), lambda: self._run(decision))
        values = {name: view.clone() for name, view in self._inputs(like, live_sizes(decision.live)).items()}
        self._fill(values)
        return StepRun(lambda: None, self._call(values, decision))

    def _fill(self, values: Mapping[str, torch.Tensor]) -> None:
        random = torch.Generator().manual_seed(_SEED)
        for value in values.values():
            if value.dtype.is_floating_point:
                value.copy_(torch.randn(value.shape, generator=random))
