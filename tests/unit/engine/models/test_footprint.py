"""The formulas against the model that is built, and against known numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ostinato.engine.models import ModelConfig, build_model
from ostinato.engine.models.footprint import footprint_of
from ostinato.testing.tiny_models import TINY_FAMILIES, tiny_config

SHAPES = Path(__file__).parents[4] / "benchmarks" / "models"


def configs() -> dict[str, ModelConfig]:
    found = {family: ModelConfig.from_hf(tiny_config(family)) for family in TINY_FAMILIES}
    for folder in sorted(SHAPES.iterdir()):
        found[folder.name] = ModelConfig.from_hf(json.loads((folder / "config.json").read_text()))
    return found


@pytest.mark.parametrize("name", configs())
def test_weights_are_those_of_the_model(name: str) -> None:
    config = configs()[name]
    with torch.device("meta"):
        model = build_model(config, device="meta", dtype=torch.bfloat16, max_model_len=16)
    real = {id(p): p.numel() * p.element_size() for p in model.parameters()}
    assert footprint_of(config, element_bytes=2).weight_bytes == sum(real.values())


def test_known_numbers_of_the_1b_shape() -> None:
    found = {t.name: t for t in footprint_of(configs()["llama-3.2-1b"], element_bytes=2).terms()}
    assert found["KV cache, a token"].num_bytes == 2 * 16 * 8 * 64 * 2 == 32 * 1024
    assert found["logits, a row"].num_bytes == 128_256 * 2
    assert found["QKV, a token"].num_bytes == (32 + 16) * 64 * 2
    assert found["MLP, a token"].num_bytes == 2 * 8192 * 2
    assert found["KV cache, a token"].formula == "2 x 16 layers x 8 KV heads x 64 x 2 bytes"
    assert "head" not in found, "it is tied to the embedding"
