"""Floors by hand: published shapes give the published floors, and the counts are those of the real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ostinato.bench.floor import DeviceLimits, ModelCosts, Work, floor_ms, floors, step_work
from ostinato.bench.model_costs import model_costs
from ostinato.engine.models import ModelConfig, build_model
from ostinato.testing.tiny_models import tiny_config

LIMITS = DeviceLimits(copy_bytes_per_s=4.2e12, matmul_flops_per_s=780e12)  # measured once on an H200
SHAPES = Path(__file__).parents[3] / "benchmarks" / "models"


def costs_of(shape: str) -> ModelCosts:
    config = ModelConfig.from_hf(json.loads((SHAPES / shape / "config.json").read_text()))
    return model_costs(config, torch.bfloat16)


def weight_floor(costs: ModelCosts, batch: int) -> float:
    row = floors(costs, LIMITS, num_tokens=batch, num_sampled=batch, kv_tokens=0, context_pairs=0, measured_ms=1.0)
    return row["weight_floor_ms"]


@pytest.mark.parametrize(
    ("shape", "batch", "expected_ms"),
    [("llama-3.2-1b", 1, 0.59), ("llama-3.2-1b", 128, 0.59), ("llama-3.2-1b", 256, 0.81), ("llama-3.1-8b", 1, 3.57)],
)
def test_weight_floors_of_public_shapes(shape: str, batch: int, expected_ms: float) -> None:
    assert weight_floor(costs_of(shape), batch) == pytest.approx(expected_ms, abs=0.01)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_costs_are_counted_on_the_model(family: str) -> None:
    config = ModelConfig.from_hf(tiny_config(family))
    model = build_model(config, device="cpu", dtype=torch.float32)
    costs = model_costs(config, torch.float32)
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    embedding = 0 if config.has_tied_head else model.embedding.numel() * 4
    assert costs.weight_bytes == total - embedding
    assert costs.head_weights == config.vocab_size * config.hidden_size
    assert costs.kv_token_bytes == 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4


def test_layer_weights_are_those_of_the_linear_layers() -> None:
    config = ModelConfig.from_hf(tiny_config("llama"))
    q, kv, hidden, inner = 128, 64, config.hidden_size, config.intermediate_size
    assert model_costs(config, torch.float32).layer_weights == config.num_layers * (
        2 * q * hidden + 2 * kv * hidden + 3 * hidden * inner
    )


def test_the_slower_of_bytes_and_arithmetic_counts() -> None:
    limits = DeviceLimits(copy_bytes_per_s=1e3, matmul_flops_per_s=1e6)
    assert floor_ms(Work(num_bytes=1, num_flops=1), limits) == pytest.approx(1.0)
    assert floor_ms(Work(num_bytes=1, num_flops=5e3), limits) == pytest.approx(5.0)


def test_work_of_a_step() -> None:
    costs = ModelCosts(weight_bytes=100, layer_weights=10, head_weights=3, kv_token_bytes=2, attention_flops=4)
    work = step_work(costs, num_tokens=5, num_sampled=1, kv_tokens=7, context_pairs=15)
    assert work == Work(num_bytes=100 + 14, num_flops=2 * (50 + 3) + 60)


def test_percent_is_the_floors_share_of_the_measured_time() -> None:
    costs = ModelCosts(weight_bytes=1000, layer_weights=0, head_weights=0, kv_token_bytes=1000, attention_flops=0)
    limits = DeviceLimits(copy_bytes_per_s=1e6, matmul_flops_per_s=1e6)
    row = floors(costs, limits, num_tokens=1, num_sampled=1, kv_tokens=1, context_pairs=0, measured_ms=8.0)
    assert row == {"floor_ms": 2.0, "weight_floor_ms": 1.0, "floor_bytes": 2000, "floor_percent": 25.0}
