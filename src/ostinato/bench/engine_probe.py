"""The one place where a benchmark looks behind `LLM`: the facade of its graphs, and one plan replayed alone.

Everything else that a benchmark knows of an engine comes from its public methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ostinato.bench.clock import host_times_us, step_times_ms
from ostinato.engine.attention import install_forward_context
from ostinato.engine.execution import measure_costs
from ostinato.engine.text import Tokenizer
from ostinato.runtime import CostTable, Graphed, GraphKey, LiveBatch, RuntimeMode

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = [
    "Coverage",
    "check_guards",
    "coverage_of",
    "decode_key",
    "facade_of",
    "fill_decode_inputs",
    "lend_tokenizer",
    "made_up",
    "made_up_eager_ms",
    "made_up_replay_ms",
    "measure_buckets",
    "model_of",
    "replay_host_us",
    "replay_ms",
]


def facade_of(llm: LLM) -> Graphed:
    """The one `Graphed` of an engine."""
    return llm._require_open().graphed


class Coverage(NamedTuple):
    """How far an engine's steps run on graphs, so far."""

    num_steps: int
    num_eager: int
    num_graphs: int
    num_pending: int


def coverage_of(llm: LLM) -> Coverage:
    """As it is now; takes microseconds."""
    graphed = facade_of(llm)
    counters = graphed.counters
    eager = counters.by_runtime_mode[RuntimeMode.EAGER.value]
    return Coverage(counters.steps, eager, len(graphed.plans), len(graphed.pending))


def model_of(llm: LLM) -> torch.nn.Module:
    """The module with an engine's weights."""
    return llm._require_open()._model


def lend_tokenizer(llm: LLM, tokenizer: Tokenizer) -> None:
    """Let an engine that has no tokenizer and no request make text of its answers, and look for end tokens."""
    assert llm.tokenizer is None and not llm.has_work(), "its own tokenizer would be lost, or answers half text"
    updates = llm._loop._updates
    llm.tokenizer = updates._tokenizer = tokenizer
    updates._eos_token_ids = tokenizer.eos_token_ids


def check_guards(graphed: Graphed, key: GraphKey) -> tuple[Callable[[], None], int]:
    """What a step does before it replays ``key``, and how many tensors that watches."""
    guards, buffers = graphed._captured._guards[key], graphed.buffers

    def run() -> None:
        buffers.check_addresses()
        graphed._captured.check(key)

    return run, guards.num_watched


def measure_buckets(llm: LLM, *, budget_seconds: float) -> CostTable:
    """What each bucket of an idle engine costs now, timed as it runs steps; its own decisions stay as they were."""
    executor = llm._require_open()
    graphed, costs = executor.graphed, executor.graphed.costs
    sizes = sorted({key.num_tokens for key in graphed.plans})
    try:
        return measure_costs(executor, overlap=bool(llm.config.overlap), sizes=sizes, budget_seconds=budget_seconds)
    finally:
        graphed.use_costs(costs)


def decode_key(llm: LLM, *, num_reqs: int, context_tokens: int) -> GraphKey | None:
    """The key that a decode step of so many requests replays; None if it runs eagerly."""
    graphed = facade_of(llm)
    tiers = sorted({key.kv_tier for key in graphed.keys if key.kv_tier is not None})
    tier = next((tier for tier in tiers if tier >= context_tokens), context_tokens) if tiers else None
    live = LiveBatch(num_tokens=num_reqs, num_reqs=num_reqs, uniform_query_len=1, context_tokens=tier)
    return graphed.decide(live).key


def fill_decode_inputs(llm: LLM, key: GraphKey, *, context_tokens: int) -> None:
    """Write a decode step into the inputs of ``key``: every request at ``context_tokens``, pages spread over the cache.

    What the last step left there may be of another size, and indexes of it would lead anywhere.
    """
    executor = llm._require_open()
    views = executor.graphed.buffers.views(executor.graphed.key_sizes(key))
    page_size, num_reqs = llm.config.page_size, key.num_tokens
    with torch.inference_mode():
        for view in views.values():
            view.zero_()
        width = -(-context_tokens // page_size)
        tables = views["block_tables"]
        pages = torch.arange(num_reqs * width, device=tables.device) % (executor.num_pages - 1) + 1
        tables[:, :width] = pages.view(num_reqs, width)
        last = context_tokens - 1
        views["positions"].fill_(last)
        views["slot_mapping"].copy_(tables[:, last // page_size].to(torch.int64) * page_size + last % page_size)
        views["seq_lens"].fill_(context_tokens)
        rows = torch.arange(num_reqs + 1, device=tables.device)
        views["query_start"].copy_(rows)
        views["sampled_rows"].copy_(rows[:-1])


def replay_ms(llm: LLM, key: GraphKey, *, num_live: int, context_tokens: int, repeats: int) -> list[float]:
    """Device time of the full decode graph of ``key`` alone, contexts ``context_tokens`` long; no step is due."""
    assert key.runtime_mode is RuntimeMode.FULL, "a piecewise plan needs the metadata of a live step"
    assert key.uniform_query_len == 1, "the inputs are those of single-token decode"
    graphed = facade_of(llm)
    plan = graphed.plans[key]
    fill_decode_inputs(llm, key, context_tokens=context_tokens)
    with torch.inference_mode():
        return step_times_ms(lambda: plan.replay(num_live), graphed.device, repeats)


@contextmanager
def made_up(graphed: Graphed, key: GraphKey) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The call with which ``key`` was captured (prompts that fill it), its inputs and metadata in place."""
    with torch.inference_mode():
        try:
            yield graphed.made_up_call(key)
        finally:
            install_forward_context(None)


def made_up_replay_ms(llm: LLM, key: GraphKey, *, repeats: int) -> list[float]:
    """Device time of the plan of ``key`` on that call."""
    graphed = facade_of(llm)
    plan = graphed.plans[key]
    with made_up(graphed, key):
        return step_times_ms(lambda: plan.replay(key.num_tokens), graphed.device, repeats)


def made_up_eager_ms(llm: LLM, key: GraphKey, *, repeats: int) -> list[float]:
    """The same call without a graph. Leaves a full graph's engine unfit for more steps: ask last."""
    graphed = facade_of(llm)
    forward = llm._require_open().forward
    with made_up(graphed, key) as (args, kwargs):
        return step_times_ms(lambda: forward(*args, **kwargs), graphed.device, repeats)


def replay_host_us(graphed: Graphed, key: GraphKey, *, repeats: int) -> dict[str, list[float]]:
    """Host time of one replay of ``key``, by how much is checked. The inputs must stand ready.

    ``on``: with the checks that every step does (static buffers and, where the runtime has them, what else the graph
    reads), at the level that ``graphed`` was made with. ``off``: without any. ``bare``: the graphs' launches alone, no
    breaks. They take turns within each repeat, so that a drift of the machine's clock hits all alike.
    """
    plan = graphed.plans[key]
    launches = [entry.replay for entry in plan.entries if hasattr(entry, "replay")]

    def guarded() -> None:
        graphed.buffers.check_addresses()
        graphed._captured.check(key)
        plan.replay(key.num_tokens)

    def bare() -> None:
        for launch in launches:
            launch()

    kinds: dict[str, Any] = {"on": guarded, "off": lambda: plan.replay(key.num_tokens), "bare": bare}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    rounds = max(1, repeats // 10)
    with torch.inference_mode():
        for _ in range(rounds):
            for name, run in kinds.items():
                found[name] += host_times_us(run, graphed.device, min(repeats, 10))
    return found
