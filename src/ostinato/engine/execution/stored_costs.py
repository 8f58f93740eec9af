"""The file of an engine's measured costs, and the partition that ``partition="auto"`` takes by it.

Read before anything is loaded or captured: a file that cannot be used is refused at once, and the partition is known
to all that comes after. Called by `load_model`, `LLM` and ``ostinato explain``.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from ostinato._version import __version__
from ostinato.engine.attention import get_attention_backend
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.graph_settings import graph_settings
from ostinato.engine.execution.model_identity import model_identity
from ostinato.engine.models import ModelConfig
from ostinato.runtime import (
    HYSTERESIS,
    Compiler,
    CostTable,
    GraphKey,
    KeyTable,
    LiveBatch,
    ModeRequest,
    Partition,
    check_costs_path,
    choose,
    hardware_name,
    planned_keys,
    read_costs,
    resolve_mode,
    write_costs,
)

__all__ = ["StoredCosts", "partition_name", "settle_partition"]

_DEFAULT: Final = Partition.BREAKABLE.value


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
        self._origin = _origin(config, device, model)
        self._tables = _tables(config, device, model)
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


def settle_partition(config: EngineConfig, device: torch.device, model: ModelConfig) -> tuple[EngineConfig, str | None]:
    """``config`` with a partition instead of "auto", and why; no reason where one was asked for.

    Taken is the partition whose chosen ways cost least, among those that the file of ``config.costs`` has tables of: at
    each bucket that is planned, full batches, what the cheapest way costs by its table, as a ratio to the least of all
    partitions; of these ratios the mean, in which every bucket counts alike. "breakable" is left by more than
    `HYSTERESIS` alone: tables are of different starts.

    Args:
        config: resolved, but for the partition.

    Raises:
        ConfigError: the file cannot be read.
        ForeignCostsError: its costs were measured elsewhere.
    """
    if config.partition != "auto":
        return config, None
    default = dataclasses.replace(config, partition=_DEFAULT)
    tables = _tables(config, device, model)
    found: dict[str, EngineConfig] = {}
    for partition in Partition:
        asked = dataclasses.replace(config, partition=partition.value)
        name = partition_name(asked, device.type, model)
        if name in tables:
            found.setdefault(name, asked)
    if len(found) < 2:
        what = "no costs are named" if config.costs is None else f"{config.costs} has no costs of several partitions"
        return default, f"{_DEFAULT}: {what}"
    ratios = _mean_ratios({name: (asked, tables[name]) for name, asked in found.items()}, device.type, model)
    if not ratios:
        return default, f"{_DEFAULT}: {config.costs} has no bucket of this engine's in all of {', '.join(found)}"
    order = sorted(ratios, key=lambda name: (ratios[name], name))
    usual = next((name for name in ratios if found[name].partition == _DEFAULT), order[0])
    best = usual if ratios[usual] <= (1 + HYSTERESIS) * ratios[order[0]] else order[0]
    shares = ", ".join(f"{name} {100 * (ratios[name] - 1):.1f} %" for name in order)
    return found[best], f"{found[best].partition}: above the least measured cost, the mean of all buckets: {shares}"


def _mean_ratios(
    candidates: Mapping[str, tuple[EngineConfig, CostTable]], device_type: str, model: ModelConfig
) -> dict[str, float]:
    """Of each partition, to the cheapest at each bucket; empty where they share none that was measured."""
    expected: dict[str, dict[LiveBatch, float]] = {}
    for name, (config, costs) in candidates.items():
        support = get_attention_backend(config.attention, device_type).capture_support
        settings = graph_settings(config, device_type, model)
        keys = planned_keys(settings, support=support, device_type=device_type)
        table = KeyTable(keys)
        decided = {live: choose(live, table, costs=costs).cost_ms for live in map(_full_batch, keys)}
        expected[name] = {live: ms for live, ms in decided.items() if ms is not None}
    shared = set.intersection(*(set(costs) for costs in expected.values()))
    if not shared:
        return {}
    least = {live: min(costs[live] for costs in expected.values()) for live in shared}
    return {name: statistics.fmean(costs[live] / least[live] for live in shared) for name, costs in expected.items()}


def _full_batch(key: GraphKey) -> LiveBatch:
    """Decodes that fill ``key``, or one prompt that does."""
    if key.uniform_query_len is None:
        return LiveBatch(num_tokens=key.num_tokens, num_reqs=1, context_tokens=key.kv_tier)
    return LiveBatch(
        num_tokens=key.num_tokens,
        num_reqs=key.num_reqs,
        uniform_query_len=key.uniform_query_len,
        context_tokens=key.kv_tier,
    )


def _origin(config: EngineConfig, device: torch.device, model: ModelConfig) -> dict[str, str]:
    """What measured costs hold for."""
    return {
        "hardware": hardware_name(device),
        "model": config.model,
        "model config": model_identity(model),  # another may lie in the same folder by now
        "dtype": config.dtype,
        "attention": config.attention,
        "overlap": "on" if config.overlap else "off",
        "torch": str(torch.__version__),
        "ostinato": __version__,
    }


def _tables(config: EngineConfig, device: torch.device, model: ModelConfig) -> dict[str, CostTable]:
    """All of the file that ``config`` names, if it is there."""
    if config.costs is None or not Path(config.costs).exists():
        return {}
    return read_costs(config.costs, origin=_origin(config, device, model))
