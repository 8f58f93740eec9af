"""The runtime's settings for an engine's: one pure function, so that `explain` decides as the executor does."""

from __future__ import annotations

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.sizes import decode_sizes_for, kv_tiers_for, max_captured_tokens, token_sizes_for
from ostinato.engine.models import ModelConfig
from ostinato.runtime import GraphConfig, preset_within

__all__ = ["graph_settings"]


def graph_settings(config: EngineConfig, device_type: str, model: ModelConfig) -> GraphConfig:
    """What `Graphed` is given for ``config``, which is resolved."""
    assert config.max_num_reqs and config.max_num_batched_tokens and config.max_model_len, "resolved"
    tokens = _named(config.token_sizes, "mixed", config.max_num_batched_tokens)
    requests = _named(config.decode_sizes, "decode", config.max_num_reqs)
    return GraphConfig(
        mode=config.mode,
        partition=config.partition,
        compile=config.compile,
        compile_max_tokens=config.compile_max_tokens,
        full_mixed_max_tokens=config.full_mixed_max_tokens or 0,
        sizes=tokens or token_sizes_for(device_type, config.max_num_batched_tokens, model.layer_weights),
        decode_sizes=requests or decode_sizes_for(device_type, config.max_num_reqs),
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


def _named(sizes: tuple[int, ...] | str | None, kind: str, limit: int) -> tuple[int, ...] | None:
    return preset_within(sizes, kind, limit=limit) if isinstance(sizes, str) else sizes


def _compiles(config: EngineConfig) -> bool:
    """Whether a compiler sees the model: it may compile again in a second run, while our kernels are warm after one."""
    return config.partition != "breakable" or config.compile != "none"
