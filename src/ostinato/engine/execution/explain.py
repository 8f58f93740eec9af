"""What the asked mode, partition and compiler become for a model on this machine, and what a step would run as.

Loads no weights.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from ostinato.engine.attention import get_attention_backend
from ostinato.engine.config import EngineConfig, resolve_engine_config
from ostinato.engine.execution.graph_settings import graph_settings
from ostinato.engine.execution.loading import find_device
from ostinato.engine.execution.step_query import StepQuery
from ostinato.engine.execution.stored_costs import StoredCosts, settle_partition
from ostinato.engine.models import ModelConfig
from ostinato.engine.weights import ModelFiles, ProgressReporter, checkpoint_dtype, resolve_model
from ostinato.errors import ConfigError
from ostinato.runtime import (
    CostTable,
    Decision,
    GraphConfig,
    GraphKey,
    Mode,
    ModeRequest,
    Phase,
    preview,
    resolve_mode,
)

__all__ = ["explain_modes", "explain_step"]


def explain_modes(
    config: EngineConfig,
    *,
    draft_length: int = 0,
    num_active_loras: int = 0,
    progress: ProgressReporter | None = None,
) -> dict[str, Any]:
    """``{"device", "attention", "asked", "resolved", "reasons", "modes": [a row for every mode]}``.

    Args:
        config: what was asked.
        draft_length: speculated tokens a request; decode then brings 1 + that many.
        num_active_loras: adapters that are active in the steps.

    Raises:
        The errors of `load_model` that concern names, devices and the model's config.
    """
    device = find_device(config.device)
    files = resolve_model(config.model, load_format="dummy", progress=progress)  # its config is enough
    model = ModelConfig.from_hf(files.config)
    attention = get_attention_backend(config.attention, device.type)

    def resolve(mode: str) -> dict[str, Any]:
        _, settings, why = _settings(dataclasses.replace(config, mode=mode), device, model, files, draft_length)
        resolved = resolve_mode(
            ModeRequest.of(
                settings,
                support=attention.capture_support,
                device_type=device.type,
                num_active_loras=num_active_loras,
            )
        )
        return {
            "asked": mode,
            "mode": resolved.mode.value,
            "partition": resolved.partition.value,
            "compile": resolved.compiler.value,
            "reasons": [*([] if why is None else [f"partition auto is {why}"]), *resolved.reasons],
            **{phase.value: resolved.runtime_mode(phase).value for phase in Phase},
            "full_mixed_max_tokens": resolved.full_mixed_max_tokens,
        }

    asked = resolve(config.mode)
    return {
        "model": config.model,
        "family": model.family,
        "device": str(device),
        "attention": {"name": attention.name, "support": attention.capture_support.name},
        "asked": {"mode": config.mode, "partition": config.partition, "compile": config.compile},
        "resolved": {name: asked[name] for name in ("mode", "partition", "compile")},
        "reasons": asked["reasons"],
        "modes": [resolve(mode.value) for mode in Mode],
    }


def explain_step(
    config: EngineConfig,
    query: StepQuery,
    *,
    draft_length: int = 0,
    num_active_loras: int = 0,
    progress: ProgressReporter | None = None,
) -> tuple[str, Decision, list[GraphKey]]:
    """How graphs are made here (`partition_name`), and what the step of ``query`` would run as, were all of them
    captured: by the costs in the file that ``config`` names, or by the order of ways. Last, those of its candidates
    whose cost is an estimate, since the file was measured with other sizes.

    Raises:
        ConfigError: the step is above a limit, or the file does not hold costs of this way to make graphs.
        The errors of `load_model` that concern names, devices and the model's config.
    """
    device = find_device(config.device)
    files = resolve_model(config.model, load_format="dummy", progress=progress)
    model = ModelConfig.from_hf(files.config)
    resolved, settings, _ = _settings(config, device, model, files, draft_length)
    live = query.live(resolved, settings.kv_tiers, tokens_a_decode=1 + draft_length)
    live = dataclasses.replace(live, num_active_loras=num_active_loras)
    stored = StoredCosts(resolved, device, model)
    if config.costs is not None and stored.table is None:
        there = "has no costs of" if Path(config.costs).exists() else "is not there to tell costs of"
        raise ConfigError(f"{config.costs} {there} partition {stored.name}", fix="add --measure to measure them now")
    support = get_attention_backend(resolved.attention, device.type).capture_support
    costs = stored.table or CostTable()  # an empty one changes no choice, and has the later candidates listed
    decision = preview(live, settings, support=support, device_type=device.type, costs=costs)
    candidates = [(decision.key, decision.cost_ms), *((one.key, one.cost_ms) for one in decision.alternatives)]
    estimated = [key for key, ms in candidates if key and ms is not None and not costs.is_measured(live, key)]
    return stored.name, decision, estimated


def _settings(
    config: EngineConfig, device: torch.device, model: ModelConfig, files: ModelFiles, draft_length: int
) -> tuple[EngineConfig, GraphConfig, str | None]:
    """What an engine for ``config`` would be, what it would ask of the runtime, and why its partition is not "auto"."""
    resolved, _ = resolve_engine_config(
        config, "cuda" if device.type == "cuda" else "cpu", model.max_model_len, checkpoint_dtype(files)
    )
    if draft_length >= (most := resolved.max_num_batched_tokens or 1):
        raise ConfigError(
            f"a decode with a draft_length of {draft_length} is above max_num_batched_tokens {most}",
            fix=f"use a draft_length below {most}, or raise max_num_batched_tokens",
        )
    resolved, why = settle_partition(resolved, device, model)
    settings = graph_settings(resolved, device.type, model)
    return resolved, dataclasses.replace(settings, uniform_query_lens=(1 + draft_length,)), why
