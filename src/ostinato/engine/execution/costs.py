"""Measured costs of an engine's own steps: timed on made-up batches, or taken from the file of an earlier start.

Each timed step is a whole one, from a scheduled batch to the greedy tokens on the device. Decodes read histories that
are spread over the cache, mixed steps are prompts; all of them write to the null page alone. Called by `LLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ostinato._version import __version__
from ostinato.engine.attention import get_attention_backend
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.graph_settings import graph_settings
from ostinato.engine.kvcache import named_pages
from ostinato.engine.models import ModelConfig
from ostinato.engine.paging import pages_for
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest
from ostinato.runtime import (
    BatchKind,
    Compiler,
    CostTable,
    Decision,
    GraphKey,
    LiveBatch,
    ModeRequest,
    StepRun,
    check_costs_path,
    hardware_name,
    read_costs,
    resolve_mode,
    write_costs,
)

__all__ = ["EngineSteps", "StoredCosts", "measure_costs", "unmeasured_keys"]

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


def measure_costs(executor: Executor, *, on_step: Callable[[], None] | None = None) -> CostTable:
    """Time the steps of ``executor``, which is idle, and let it decide by them. See `Graphed.measure`."""
    try:
        budget = _BUDGET_SECONDS[executor.graphed.device.type]
        return executor.graphed.measure(steps=EngineSteps(executor), budget_seconds=budget, on_step=on_step)
    finally:
        executor.forget_requests()
        executor.leave_step()


def unmeasured_keys(executor: Executor, costs: CostTable) -> list[GraphKey]:
    """Keys of ``executor`` that ``costs`` does not have; see `Graphed.unmeasured`."""
    return executor.graphed.unmeasured(costs, steps=EngineSteps(executor))


class StoredCosts:
    """The file of `EngineConfig.costs`, read before anything is captured.

    Args:
        config: resolved; with the device, what the costs must hold for.
        device: where steps run.

    Raises:
        ConfigError: it cannot be read, or not be written where there is none yet.
        ForeignCostsError: its costs were measured elsewhere.
    """

    def __init__(self, config: EngineConfig, device: torch.device, model: ModelConfig) -> None:
        self._path = None if config.costs is None else Path(config.costs)
        self.name = partition_name(config, device.type, model)
        self._origin = {
            "hardware": hardware_name(device),
            "model": config.model,
            "dtype": config.dtype,
            "attention": config.attention,
            "torch": str(torch.__version__),
            "ostinato": __version__,
        }
        self._tables: dict[str, CostTable] = {}
        if self._path is not None and self._path.exists():
            self._tables = read_costs(self._path, origin=self._origin)
        if self._path is not None and self.name not in self._tables:
            check_costs_path(self._path)

    @property
    def table(self) -> CostTable | None:
        """The costs of this engine's way to make pieces, if the file has them."""
        return self._tables.get(self.name)

    def save(self, table: CostTable) -> None:
        """Add what was measured to the file, if there is to be one."""
        self._tables[self.name] = table
        if self._path is not None:
            write_costs(self._path, self._tables, origin=self._origin)


def partition_name(config: EngineConfig, device_type: str, model: ModelConfig) -> str:
    """What tells the tables of one file apart: how graphs are made here, ``fx``, ``fx+inductor`` or, with shared
    executables, ``breakable+shared`` for example: those take longer to launch, also where nothing is switched."""
    support = get_attention_backend(config.attention, device_type).capture_support
    settings = graph_settings(config, device_type, model)
    resolved = resolve_mode(ModeRequest.of(settings, support=support, device_type=device_type))
    name = resolved.partition.value
    if resolved.compiler is not Compiler.NONE:
        name += f"+{resolved.compiler.value}"
    return f"{name}+shared" if config.executables == "shared" else name
