"""Measured costs of an engine's own steps, timed on made-up batches.

Each timed step is a whole one, from a scheduled batch to the greedy tokens on the device. Decodes read histories that
are spread over the cache, mixed steps are prompts; all of them write to the null page alone. Called by `LLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from torch import Tensor

from ostinato.engine.execution.executor import Executor
from ostinato.engine.kvcache import named_pages
from ostinato.engine.paging import pages_for
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest
from ostinato.runtime import BatchKind, CostTable, Decision, GraphKey, LiveBatch, StepRun

__all__ = ["EngineSteps", "measure_costs", "unmeasured_keys"]

_CONTEXT_TOKENS: Final = 512
"""Of each decode that is timed, where graphs have no KV tiers; in a tier, half of it."""


class EngineSteps:
    """`StepsToTime` of an executor: captured and idle.

    Args:
        executor: whose steps are timed.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._limits = executor.limits

    def state(self) -> Mapping[str, Tensor]:
        """See `StepsToTime.state`: the null page of each layer, and the tokens that were sampled last."""
        found = {name: pages[:1] for name, pages in named_pages(self._executor.caches)}
        return found | {"sampled tokens": self._executor.last_ids}

    def live(self, kind: BatchKind, key: GraphKey) -> LiveBatch | None:
        """See `StepsToTime.live`."""
        most_reqs = self._executor.graphed.key_sizes(key)["num_reqs"]
        query_len = kind.uniform_query_len
        if query_len is not None:
            num_reqs = min(key.num_tokens // query_len, most_reqs)
            num_tokens = num_reqs * query_len
        else:
            num_tokens = min(key.num_tokens, self._limits.max_num_batched_tokens)
            num_reqs = -(-num_tokens // self._limits.max_model_len)
        if not 0 < num_reqs <= most_reqs:
            return None
        return LiveBatch(
            num_tokens=num_tokens, num_reqs=num_reqs, uniform_query_len=query_len, context_tokens=kind.kv_tier
        )

    def step(self, decision: Decision, like: GraphKey) -> StepRun:
        """See `StepsToTime.step`."""
        batch = self._batch(decision.live)

        def run() -> None:
            self._executor.launch(batch, decision)

        # Requests that were not in the step before cost the host a millisecond and more to enter, in serving once and
        # not in each step. Whether that was timed would depend on how often a step is run in a turn.
        return StepRun(run, run)

    def _batch(self, live: LiveBatch) -> ScheduledBatch:
        new, longest = live.uniform_query_len, self._limits.max_model_len
        if new is None:
            rest = live.num_tokens
            items: list[ScheduledRequest] = []
            while rest:
                items.append(self._item(len(items), 0, min(rest, longest), is_decode=False))
                rest -= min(rest, longest)
            return ScheduledBatch(tuple(items))
        context = min(longest, (live.context_tokens or 2 * _CONTEXT_TOKENS) // 2)
        assert live.num_reqs is not None, "decode counts requests"
        start = max(context - new, 0)
        return ScheduledBatch(tuple(self._item(n, start, new, is_decode=True) for n in range(live.num_reqs)))

    def _item(self, index: int, start: int, num_new: int, *, is_decode: bool) -> ScheduledRequest:
        page_size, others = self._limits.page_size, self._executor.num_pages - 1
        num_read = start // page_size  # full pages of history; those behind are written
        num_pages = pages_for(start + num_new, page_size)
        request = Request(
            request_id=f"cost-{index}",
            prompt_token_ids=[0] * (start + num_new),
            num_computed_tokens=start,
            pages=[
                1 + (index * num_read + page) % others if page < num_read and others else 0 for page in range(num_pages)
            ],
        )
        return ScheduledRequest(request, start, num_new, True, is_decode)


_BUDGET_SECONDS: Final = {"cpu": 1.0, "cuda": 4.0}
"""A device is worth four times as much: where its host slows down for a second, undisturbed turns are left."""


def measure_costs(
    executor: Executor,
    *,
    overlap: bool,
    sizes: Sequence[int] | None = None,
    budget_seconds: float | None = None,
    on_step: Callable[[], None] | None = None,
) -> CostTable:
    """Time the steps of ``executor``, which is idle, and let it decide by them. See `Graphed.measure`.

    Args:
        budget_seconds: by default what a start spends.
    """
    if budget_seconds is None:
        budget_seconds = _BUDGET_SECONDS[executor.graphed.device.type]
    try:
        return executor.graphed.measure(
            steps=EngineSteps(executor), sizes=sizes, budget_seconds=budget_seconds, overlap=overlap, on_step=on_step
        )
    finally:
        executor.forget_requests()
        executor.leave_step()


def unmeasured_keys(executor: Executor, costs: CostTable) -> list[GraphKey]:
    """Keys of ``executor`` that ``costs`` does not have; see `Graphed.unmeasured`."""
    return executor.graphed.unmeasured(costs, steps=EngineSteps(executor))
