"""Reading ``config.json``."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.models import ModelConfig, build_model
from ostinato.errors import CheckpointError, ConfigError, UnsupportedArchitectureError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
}


def test_a_llama_config():
    config = ModelConfig.from_hf(LLAMA)
    assert (config.family, config.num_layers, config.num_heads, config.num_kv_heads) == ("llama", 16, 32, 8)
    assert (config.head_dim, config.max_model_len, config.has_tied_head) == (64, 131072, True)
    assert (config.rope.kind, config.rope.factor, config.rope.original_max_len) == ("llama3", 32.0, 8192)
    assert config.rope.theta == 500000.0


def test_the_newer_form_of_rotary_settings_means_the_same():
    newer = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling")}
    newer["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": 500000.0}
    assert ModelConfig.from_hf(newer).rope == ModelConfig.from_hf(LLAMA).rope


def test_head_dim_and_kv_heads_have_defaults():
    config = ModelConfig.from_hf({k: v for k, v in LLAMA.items() if k not in ("head_dim", "num_key_value_heads")})
    assert (config.head_dim, config.num_kv_heads) == (64, 32)


def test_a_sliding_window_caps_the_context():
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    assert ModelConfig.from_hf(mistral).max_model_len == 4096
    assert ModelConfig.from_hf({**mistral, "sliding_window": None}).max_model_len == 131072
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "use_sliding_window": False}
    assert ModelConfig.from_hf(qwen).max_model_len == 131072
    assert ModelConfig.from_hf({**qwen, "use_sliding_window": True}).max_model_len == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "SequenceClassification"),
        ({"architectures": None, "model_type": "bert"}, "bert"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
    ],
)
def test_what_the_engine_lacks_is_named(changes, message):
    with pytest.raises(UnsupportedArchitectureError, match=message):
        ModelConfig.from_hf({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": 5}, "32 query heads"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ],
)
def test_broken_configs_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.from_hf({**LLAMA, **changes})


@pytest.mark.parametrize("max_model_len", [0, 257])
def test_max_model_len_must_fit_the_model(hf, max_model_len):
    with pytest.raises(ConfigError, match=str(max_model_len)):
        build_model(ModelConfig.from_hf(hf), device="cpu", dtype=torch.float32, max_model_len=max_model_len)


def test_build_model_leaves_no_trace_and_no_gradient(hf):
    model = build_model(ModelConfig.from_hf(hf), device="cpu", dtype=torch.bfloat16, max_model_len=32)
    assert torch.get_default_dtype() == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.parameters())
    assert model.rotary.table.shape[0] == 32
    assert model.rotary.table.dtype == torch.float32


def test_dummy_weights_follow_the_seed(hf):
    models = [
        build_model(ModelConfig.from_hf(hf), device="cpu", dtype=torch.float32, max_model_len=32) for _ in range(3)
    ]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        model.init_dummy(seed)
    first, same, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.isfinite(first).all()
    assert torch.equal(models[0].norm.weight, torch.ones(48))


@pytest.mark.parametrize(("name", "value"), [("num_attention_heads", "four"), ("hidden_size", -128), ("head_dim", 0)])
def test_a_count_that_is_none_is_refused(name, value):
    with pytest.raises(CheckpointError, match=name):
        ModelConfig.from_hf({**LLAMA, name: value})
