"""The runtime's settings follow from an engine's."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.engine.config import EngineConfig, resolve_engine_config
from ostinato.engine.execution.graph_settings import graph_settings
from ostinato.engine.models import ModelConfig

LLAMA_1B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
LLAMA_8B = {**LLAMA_1B, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128}


@pytest.mark.parametrize(
    ("device", "settings", "runs"),
    [
        ("cuda", {"partition": "breakable"}, 1),
        ("cuda", {"partition": "breakable", "compile": "inductor"}, 2),
        ("cuda", {"partition": "fx"}, 2),
        ("cuda", {"partition": "inductor"}, 2),
        ("cpu", {"partition": "fx"}, 1),
    ],
)
def test_a_second_warm_up_is_for_compilers(device: str, settings: dict[str, Any], runs: int) -> None:
    asked = EngineConfig(mode="full_and_piecewise", attention="torch", **settings)
    config, _ = resolve_engine_config(asked, device, 2048, "float32")
    assert graph_settings(config, device, ModelConfig.from_hf(LLAMA_1B)).warm_up_runs == runs


@pytest.mark.parametrize(("hf", "weights", "largest"), [(LLAMA_1B, 60_817_408, 1024), (LLAMA_8B, 218_103_808, 512)])
def test_the_ladder_ends_where_the_device_computes_longer_than_the_host_launches(hf, weights, largest) -> None:
    model = ModelConfig.from_hf(hf)
    config, _ = resolve_engine_config(EngineConfig(), "cuda", 2048, "bfloat16")
    assert model.layer_weights == weights
    assert graph_settings(config, "cuda", model).max_captured_size == largest


def test_ladders_of_others_end_at_the_engines_limits() -> None:
    asked = EngineConfig(decode_sizes="vllm", token_sizes="sglang", max_num_reqs=20, max_num_batched_tokens=100)
    config, _ = resolve_engine_config(asked, "cpu", 2048, "float32")
    settings = graph_settings(config, "cpu", ModelConfig.from_hf(LLAMA_1B))
    assert settings.decode_sizes == (1, 2, 4, 8, 16, 20)
    assert settings.sizes == (4, 8, 12, 16, 20, 24, 28, 32, 48, 64, 80, 96, 100)
