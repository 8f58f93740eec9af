"""What a layer asks torch for in each step: nothing that a look-up in Python answers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ostinato.engine.models import decoder_layer


@pytest.fixture
def looked_up(monkeypatch):
    """Names of attributes that `nn.Module.__getattr__` was asked for."""
    names, look_up = [], nn.Module.__getattr__

    def noted(self, name):
        names.append((type(self).__name__, name))
        return look_up(self, name)

    monkeypatch.setattr(nn.Module, "__getattr__", noted)
    return names


@pytest.mark.parametrize("path", ["some rows", "one row"])
def test_a_layer_looks_up_nothing_by_torch(monkeypatch, hf, weights, make_engine, looked_up, path):
    engine = make_engine(hf, weights)
    monkeypatch.setattr(decoder_layer, "takes_one_row_path", lambda x: path == "one row")
    engine.step({"a": [3]}, uniform=1)
    looked_up.clear()
    engine.step({"a": [5]}, uniform=1)
    once_a_step = {"DecoderModel", "RotaryTable"}
    assert {kind for kind, _ in looked_up} <= once_a_step and len(looked_up) < 10


def test_parts_are_those_that_are_set_last(hf, weights, make_engine):
    """Whoever replaces a weight or a module is heard: nothing is kept of the one before."""
    layer = make_engine(hf, weights).model.layers[0]
    weight = nn.Parameter(torch.zeros_like(layer.mlp.down.weight), requires_grad=False)
    layer.mlp.down.weight = weight
    assert layer.mlp.down.tensors()[0] is weight
    scale = nn.Parameter(torch.zeros_like(layer.mlp_norm.weight), requires_grad=False)
    layer.mlp_norm.weight = scale
    assert layer.mlp_norm.scale is scale
    mlp = type(layer.mlp)(8, 4, has_bias=True)
    layer.mlp = mlp
    assert layer._parts()[3] is mlp and mlp.projections() == (mlp.gate_up, mlp.down)
    assert mlp.down.tensors() == (mlp.down.weight, mlp.down.bias)
    assert layer.attention.projections() == (layer.attention.qkv, layer.attention.out)
