"""Loading weights: everything that does not fit is named."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.models import ModelConfig, build_model
from ostinato.errors import CheckpointError


@pytest.fixture
def model(hf):
    return build_model(ModelConfig.from_hf(hf), device="cpu", dtype=torch.float32, max_model_len=64)


def test_every_parameter_is_filled(model, weights):
    for parameter in model.parameters():
        parameter.fill_(float("nan"))
    model.load_weights(weights.items())
    assert not any(parameter.isnan().any() for parameter in model.parameters())


def test_missing_tensors_are_named(model, weights):
    del weights["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(CheckpointError, match=r"1 missing: model\.layers\.1\.self_attn\.k_proj\.weight"):
        model.load_weights(weights.items())


def test_a_missing_layer_is_counted_and_cut_short(model, weights):
    kept = {name: tensor for name, tensor in weights.items() if ".layers.1." not in name}
    with pytest.raises(CheckpointError, match=rf"{len(weights) - len(kept)} missing: .*, \.\.\."):
        model.load_weights(kept.items())


def test_unexpected_tensors_are_named(model, weights):
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.layers\.9\.mlp\.up_proj\.weight"):
        model.load_weights([*weights.items(), ("model.layers.9.mlp.up_proj.weight", torch.zeros(1))])


def test_wrong_shapes_are_named_with_both_shapes(model, weights):
    weights["model.norm.weight"] = torch.zeros(47)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight \[47\] for \[48\]"):
        model.load_weights(weights.items())


def test_duplicates_and_integers_are_refused(model, weights):
    with pytest.raises(CheckpointError, match=r"1 given twice: model\.norm\.weight"):
        model.load_weights([*weights.items(), ("model.norm.weight", weights["model.norm.weight"])])
    weights["model.norm.weight"] = torch.ones(48, dtype=torch.int8)
    with pytest.raises(CheckpointError, match=r"not floating-point: model\.norm\.weight torch\.int8"):
        model.load_weights(weights.items())


def test_all_problems_come_at_once(model, weights):
    del weights["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"1 unexpected: odd.*1 missing: model\.norm\.weight"):
        model.load_weights([*weights.items(), ("odd", torch.zeros(1))])


def test_rotary_buffers_are_ignored(model, weights):
    model.load_weights([*weights.items(), ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(4))])


def test_a_tied_head_may_be_there_or_not(model, weights):
    if not model.config.has_tied_head:
        del weights["lm_head.weight"]
        with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
            model.load_weights(weights.items())
        return
    model.load_weights([*weights.items(), ("lm_head.weight", weights["model.embed_tokens.weight"])])
    assert model.head is model.embedding


def test_other_dtypes_are_converted(model, weights):
    model.load_weights((name, tensor.to(torch.bfloat16)) for name, tensor in weights.items())
    expected = weights["model.norm.weight"].to(torch.bfloat16).float()
    assert torch.equal(model.norm.weight, expected)
