"""The runtime's settings for an engine's: one pure function, so that `explain` decides as the executor does. And the
way back: an engine's settings as the runtime has resolved them."""

from __future__ import annotations

import dataclasses
from typing import Any

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.sizes import (
    decode_sizes_for,
    kv_tiers_for,
    max_captured_tokens,
    named_sizes,
    token_sizes_for,
)
from ostinato.engine.models import ModelConfig
from ostinato.engine.paging import pages_for
from ostinato.runtime import GraphConfig, ResolvedMode

__all__ = ["graph_settings", "in_force", "why_sizes_end"]


def graph_settings(
    config: EngineConfig, device_type: str, model: ModelConfig, *, num_pages: int | None = None
) -> GraphConfig:
    """What `Graphed` is given for ``config``, which is resolved. Default ladders end at what the KV cache can hold.

    Args:
        num_pages: that the cache has at most, the null page not counted, where ``config.kv_tokens`` does not say.
    """
    assert config.max_num_reqs and config.max_num_batched_tokens and config.max_model_len, "resolved"
    if config.kv_tokens is not None:
        num_pages = pages_for(config.kv_tokens, config.page_size)
    most_tokens, most_reqs = config.max_num_batched_tokens, config.max_num_reqs
    if num_pages is not None:
        most_tokens, most_reqs = min(most_tokens, num_pages * config.page_size), min(most_reqs, num_pages)
    tokens = named_sizes(config.token_sizes, "mixed", limit=most_tokens)
    requests = named_sizes(config.decode_sizes, "decode", limit=most_reqs)
    return GraphConfig(
        mode=config.mode,
        partition=config.partition,
        compile=config.compile,
        compile_max_tokens=config.compile_max_tokens,
        full_mixed_max_tokens=config.full_mixed_max_tokens or 0,
        sizes=tokens or token_sizes_for(device_type, most_tokens, model.layer_weights),
        decode_sizes=requests or decode_sizes_for(device_type, config.max_num_reqs, num_pages),
        max_size=config.max_num_batched_tokens,
        max_captured_size=max_captured_tokens(model.layer_weights),
        max_num_reqs=config.max_num_reqs,
        kv_tiers=kv_tiers_for(config.attention, config.max_model_len),
        ownership=config.ownership,
        executables=config.executables,
        outputs="view",
        guards=config.guards,
        on_moved=config.on_moved,
        shadow_every=config.shadow_every,
        warm_up_runs=2 if device_type == "cuda" and _compiles(config) else 1,
    )


def in_force(config: EngineConfig, mode: ResolvedMode) -> tuple[EngineConfig, dict[str, str]]:
    """``config`` with what became of it in the runtime, and the reason of each change by setting. Its `mode` stays as
    asked, since ``mode`` tells both.

    For what is told, alone: costs and manifests are of what was asked.
    """
    changes: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for change in mode.changes:
        if change.setting != "mode":
            changes[change.setting] = getattr(change.resolved, "value", change.resolved)
            reasons[change.setting] = f"{change.resolved}: {change.why}"
    if changes.get("compile") == "none" and config.compile_max_tokens is not None:
        changes["compile_max_tokens"], reasons["compile_max_tokens"] = None, "None: nothing is compiled"
    return dataclasses.replace(config, **changes), reasons


def why_sizes_end(config: EngineConfig, num_pages: int) -> dict[str, str]:
    """Why default ladders end below the largest batch, by setting; of those that the KV cache cuts.

    Args:
        config: resolved.
        num_pages: of the cache, the null page not counted.
    """
    assert config.max_num_reqs and config.max_num_batched_tokens, "resolved"
    most_tokens = num_pages * config.page_size
    reasons = {}
    if not isinstance(config.decode_sizes, tuple) and num_pages < config.max_num_reqs:
        reasons["decode_sizes"] = f"up to {num_pages}: each decode needs a page, and the KV cache has no more"
    if not isinstance(config.token_sizes, tuple) and most_tokens < config.max_num_batched_tokens:
        reasons["token_sizes"] = f"up to {most_tokens}: the KV cache holds no more tokens"
    return reasons


def _compiles(config: EngineConfig) -> bool:
    """Whether a compiler sees the model: it may compile again in a second run, while our kernels are warm after one."""
    return config.partition != "breakable" or config.compile != "none"
