"""The shapes that tuning measures are those that the model multiplies by."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.layers.linear_tiles import LinearKind
from ostinato.engine.models import ModelConfig, build_model
from ostinato.engine.models.linear_shapes import linear_shapes


@pytest.mark.parametrize("is_tied", [False, True])
def test_every_projection_is_there_in_each_bucket(is_tied):
    hf = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 70,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": is_tied,
    }
    config = ModelConfig.from_hf(hf)
    model = build_model(config, device="meta", dtype=torch.float32)
    layer = model.layers[0]
    weights = [  # each with its kind for one row, and for more
        (LinearKind.NORM_LINEAR, LinearKind.LINEAR, layer.attention.qkv.weight.shape, 1),
        (LinearKind.LINEAR_ADD, LinearKind.SPLIT_LINEAR, layer.attention.out.weight.shape, 1),
        (LinearKind.NORM_GATED_LINEAR, LinearKind.GATED_LINEAR, layer.mlp.gate_up.weight.shape, 2),
        (LinearKind.LINEAR_ADD, LinearKind.SPLIT_LINEAR, layer.mlp.down.weight.shape, 1),
        (LinearKind.NORM_LINEAR, LinearKind.LINEAR, model.head.shape, 1),
    ]
    expected = {
        (kind, rows, shape[0] // halves, shape[1], "bfloat16")
        for one, more, shape, halves in weights
        for kind, rows in ((one, 1), (more, 16))
    }
    shapes = linear_shapes(config, dtype="bfloat16", rows=(1, 8, 9))
    assert {(s.kind, s.num_rows, s.out_features, s.in_features, s.dtype) for s in shapes} == expected
    assert len(shapes) == len(expected)
