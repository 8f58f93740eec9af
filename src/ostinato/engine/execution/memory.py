"""Where an engine's memory will go, before it is captured: from shapes, and from a few sample captures.

Weights, caches, logits and buffers follow from shapes and are measured on an engine with few sizes; graph pool and
executables are extrapolated from its captures (`runtime.GraphGrowth`). Called by ``ostinato memory``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ostinato.engine.attention import get_attention_backend
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.graph_settings import graph_settings, in_force
from ostinato.engine.execution.loading import LoadedModel
from ostinato.engine.execution.memory_budget import SHARE_AFTER_CAPTURE, available_bytes
from ostinato.engine.kvcache import pages_for_tokens
from ostinato.engine.models.footprint import Footprint, footprint_of
from ostinato.engine.paging import pages_for
from ostinato.errors import OutOfMemoryError
from ostinato.runtime import DeviceView, GraphGrowth, GraphKey, planned_keys

__all__ = ["MemoryForecast", "forecast_memory"]

KV: Final = "KV cache"


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Bytes by owner.

    Attributes:
        predicted: for all planned graphs.
        measured: of a whole engine; None if none was made.
        num_graphs: planned.
        num_samples: captured to predict the others.
        budget_bytes: for all owners together.
        kv_tokens: that fit into the budget beside the other owners, no more than requests can use; or that were
            asked for.
        footprint: the formulas.
        config: of the engine, as the runtime has resolved it.
        device: how the device looked with that engine; None if there was none, or on a CPU.
        executables: that launch the graphs of that engine: `runtime.capture.ExecutableCounts.to_dict`; None if there
            was none.
    """

    predicted: Mapping[str, int]
    measured: Mapping[str, int] | None
    num_graphs: int
    num_samples: int
    budget_bytes: int
    kv_tokens: int
    footprint: Footprint
    config: EngineConfig
    device: DeviceView | None = field(default=None)
    executables: Mapping[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "predicted": {**self.predicted, "total": sum(self.predicted.values())},
            "measured": None if self.measured is None else {**self.measured, "total": sum(self.measured.values())},
            "graphs": self.num_graphs,
            "sample_captures": self.num_samples,
            "budget_bytes": self.budget_bytes,
            "kv_tokens": self.kv_tokens,
            "formulas": [dataclasses.asdict(term) for term in self.footprint.terms()],
            "device": None if self.device is None else dataclasses.asdict(self.device),
            "executables": None if self.executables is None else dict(self.executables),
        }


def forecast_memory(
    loaded: LoadedModel,
    *,
    budget_bytes: int | None = None,
    is_measured: bool = False,
    on_key: Callable[[GraphKey], None] | None = None,
) -> MemoryForecast:
    """What an engine of ``loaded`` will hold.

    Args:
        budget_bytes: for all of it; None takes what the device has, less a reserve.
        is_measured: make a whole engine too, and compare.
        on_key: told of each key that is warmed up and captured.

    Raises:
        OutOfMemoryError: not even one request of ``max_model_len`` fits into the budget; it says which would do, and
            which setting gives how much.
    """
    config = loaded.config
    assert config.max_num_reqs and config.max_model_len, "resolved"
    planned = _planned_keys(loaded)
    executor = Executor(_with_samples(loaded, planned))
    try:
        captures = Captures(executor)
        captures.start(on_key=on_key)
        resolved, _ = in_force(config, executor.graphed.mode)
        costs, owners = captures.costs, dict(captures.memory().owners)
        available = available_bytes(loaded.device)
    finally:
        executor.close()
    rest = [key for key in planned if key not in costs]
    growth = GraphGrowth.fit(list(costs.values()))
    pool, executables = growth.predict((key.kind, key.num_tokens) for key in rest)
    predicted = owners | {"graph pool": pool, "executables": executables}
    if budget_bytes is None:
        budget_bytes = sum(owners.values()) + int(available * SHARE_AFTER_CAPTURE[loaded.device.type])
    others = {owner: num_bytes for owner, num_bytes in predicted.items() if owner != KV}
    per_graph = (pool + executables - growth.pool_bytes - growth.driver_bytes) // max(len(rest), 1)
    footprint = footprint_of(loaded.model.config, element_bytes=loaded.dtype.itemsize)
    kv_tokens = _fitting(loaded, footprint, others, budget_bytes, per_graph)
    pages = pages_for_tokens(num_tokens=kv_tokens, page_size=config.page_size)
    predicted[KV] = pages * config.page_size * footprint.kv_token.num_bytes
    measured, device, counts = _measure(loaded, kv_tokens, on_key) if is_measured else (None, None, None)
    return MemoryForecast(
        predicted=predicted,
        measured=measured,
        num_graphs=len(planned),
        num_samples=len(costs),
        budget_bytes=budget_bytes,
        kv_tokens=kv_tokens,
        footprint=footprint,
        config=resolved,
        device=device,
        executables=counts,
    )


def _measure(
    loaded: LoadedModel, kv_tokens: int, on_key: Callable[[GraphKey], None] | None
) -> tuple[dict[str, int], DeviceView | None, dict[str, int]]:
    """What a whole engine holds, what the device looks like then, and its executables by count.

    Not the samples' engine with the rest captured behind: out of order, graphs leave gaps in their pool.
    """
    executor = Executor(_with(loaded, kv_tokens=kv_tokens))
    try:
        captures = Captures(executor)
        captures.start(on_key=on_key)
        counts = executor.graphed.backend.executables().to_dict()
        return dict(captures.memory().owners), _device_view(loaded.device), counts
    finally:
        executor.close()


def _planned_keys(loaded: LoadedModel) -> list[GraphKey]:
    device_type = loaded.device.type
    support = get_attention_backend(loaded.config.attention, device_type).capture_support
    settings = graph_settings(loaded.config, device_type, loaded.model.config)
    return planned_keys(settings, support=support, device_type=device_type)


def _with_samples(loaded: LoadedModel, planned: Iterable[GraphKey]) -> LoadedModel:
    """``loaded`` with a few of the sizes, and the smallest cache."""
    sizes: dict[str, set[int]] = {}
    for key in planned:
        sizes.setdefault(key.kind, set()).add(key.num_tokens)
    decode = _samples(sizes.pop("full decode", set()))
    tokens = sorted({size for kind in sizes.values() for size in _samples(kind)})
    return _with(
        loaded,
        kv_tokens=max(loaded.config.max_model_len or 0, max(decode, default=0) * loaded.config.page_size, *tokens),
        decode_sizes=tuple(decode) or None,
        token_sizes=tuple(tokens) or None,
        shadow_every=0,
    )


def _with(loaded: LoadedModel, **changes: Any) -> LoadedModel:
    return dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, **changes))


def _samples(sizes: Iterable[int]) -> list[int]:
    """Those that tell most: the three largest, which bring nearly all of the pool, and two for the slope."""
    ordered = sorted(sizes)
    return sorted({*ordered[-3:], *ordered[len(ordered) // 2 :][:1], *ordered[:1]})


def _fitting(loaded: LoadedModel, footprint: Footprint, others: Mapping[str, int], budget: int, per_graph: int) -> int:
    """Tokens of KV cache in what ``others`` leave of ``budget``, in whole pages besides the null page."""
    config, token_bytes = loaded.config, footprint.kv_token.num_bytes
    assert config.max_num_reqs and config.max_model_len, "resolved"
    left = budget - sum(others.values())
    fitting = (left // (token_bytes * config.page_size) - 1) * config.page_size
    wanted = config.kv_tokens or config.max_model_len
    if fitting < wanted:
        counts_row = 2 * loaded.model.config.vocab_size
        pages = pages_for_tokens(num_tokens=wanted, page_size=config.page_size)
        least = {**others, KV: pages * config.page_size * token_bytes}
        by_owner = ", ".join(f"{owner} {_mib(num_bytes)}" for owner, num_bytes in least.items() if num_bytes)
        raise OutOfMemoryError(
            f"{wanted} KV tokens need {_mib(wanted * token_bytes)}, and {_mib(left)} of {_mib(budget)} are left; "
            f"the least budget is {-(-sum(least.values()) // 2**20):,} MiB: {by_owner}",
            fix="; ".join(
                (
                    f"each request less of max_num_reqs gives {_mib(footprint.logits_row.num_bytes + counts_row)}",
                    f"each graph less of decode_sizes or token_sizes about {_mib(per_graph)}",
                    f"each 1,000 tokens less of max_model_len or kv_tokens {_mib(1000 * token_bytes)}",
                    f"a dtype of half the size {_mib(footprint.weight_bytes // 2)}",
                )
            ),
        )
    if config.kv_tokens is not None:
        return pages_for(config.kv_tokens, config.page_size) * config.page_size
    longest = pages_for(config.max_model_len, config.page_size) * config.page_size
    return min(fitting, longest * config.max_num_reqs)


def _device_view(device: torch.device) -> DeviceView | None:
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    segments = [s for s in torch.cuda.memory_snapshot() if s["device"] == device.index]
    return DeviceView.of(segments, total_bytes=total, free_bytes=free)


def _mib(num_bytes: int) -> str:
    num_bytes = max(num_bytes, 0)
    return f"{num_bytes / 2**20:,.1f} MiB" if num_bytes >= 2**20 or not num_bytes else f"{num_bytes / 2**10:,.1f} KiB"
