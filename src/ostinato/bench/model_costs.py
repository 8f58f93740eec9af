"""The model that is measured: its facts, before any weight is loaded, and what a step of it costs at least."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ostinato.bench.floor import ModelCosts
from ostinato.engine.config import EngineConfig, resolve_engine_config
from ostinato.engine.execution.loading import find_device
from ostinato.engine.models import ModelConfig, build_model
from ostinato.engine.weights import checkpoint_dtype, resolve_model

__all__ = ["Target", "find_target"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Device, dtype and shape of what is measured.

    Attributes:
        max_model_len: the longest context that the model has.
        layer_weights: of one layer; where the default ladder ends depends on it.
        costs: bytes and operations of a step.
        has_tokenizer: whether an engine of it makes text by itself.
    """

    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    max_model_len: int
    layer_weights: int
    costs: ModelCosts
    has_tokenizer: bool = True


def find_target(config: EngineConfig) -> Target:
    """Look the model up; loads its config and no weights.

    Raises:
        DeviceUnavailableError, ModelNotFoundError, UnsupportedArchitectureError, CheckpointError: as for an engine.
    """
    device = find_device(config.device)
    files = resolve_model(config.model, load_format=config.load_format)
    model = ModelConfig.from_hf(files.config)
    resolved, _ = resolve_engine_config(
        config, "cuda" if device.type == "cuda" else "cpu", model.max_model_len, checkpoint_dtype(files)
    )
    dtype: torch.dtype = getattr(torch, resolved.dtype)
    return Target(
        device=device,
        dtype=dtype,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        layer_weights=model.layer_weights,
        costs=model_costs(model, dtype),
        has_tokenizer=(files.directory / "tokenizer.json").exists(),
    )


def model_costs(model: ModelConfig, dtype: torch.dtype) -> ModelCosts:
    """Counted on a model without storage."""
    with torch.device("meta"):
        sketch = build_model(model, device="meta", dtype=dtype, max_model_len=16)
    parameters = {id(p): p for p in sketch.parameters()}  # a tied head is one tensor under two names
    read = [p for p in parameters.values() if model.has_tied_head or p is not sketch.embedding]
    head = sketch.head
    return ModelCosts(
        weight_bytes=sum(p.numel() * p.element_size() for p in read),
        layer_weights=sum(p.numel() for p in read if p.dim() == 2 and p is not head),
        head_weights=head.numel(),
        kv_token_bytes=2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize,
        attention_flops=4 * model.num_layers * model.num_heads * model.head_dim,
    )
