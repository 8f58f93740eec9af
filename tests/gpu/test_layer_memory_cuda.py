"""What a layer above 128 rows takes of a device's memory, and that gating in place changes no bit."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ostinato.engine.layers import FusedLinears, GatedMLP, attention
from ostinato.engine.layers.mlp import silu_mul
from ostinato.engine.models import ModelConfig
from ostinato.engine.models.decoder_layer import DecoderLayer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
]
SHAPES = Path(__file__).parents[2] / "benchmarks" / "models"
DEVICE, BF16, F16, F32 = "cuda", torch.bfloat16, torch.float16, torch.float32
MIB = 1 << 20
SLACK = 40 * MIB  # a workspace of cuBLAS that is allocated for one product; less than any tensor that is looked for


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def filled(module):
    for parameter in module.parameters():
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return module


def peak_bytes(run):
    """Above what is allocated before; the first run compiles, and makes workspaces that stay."""
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_gated_mlp_takes_gate_and_up_and_its_result(has_bias):
    rows, hidden, inner = 16384, 2048, 8192
    mlp, linears = filled(GatedMLP(hidden, inner, has_bias=has_bias).to(DEVICE, BF16)), FusedLinears()
    x = torch.randn(rows, hidden, device=DEVICE, dtype=BF16)
    peak = peak_bytes(lambda: linears.split_linear(linears.gated_linear(x, mlp.gate_up), mlp.down))
    expected = rows * (2 * inner + hidden) * 2
    assert expected <= peak <= expected + SLACK, f"{peak / MIB:.1f} MiB"


def test_a_layer_takes_gate_and_up_and_a_stream(monkeypatch):
    """Beside the addend and the residual that the caller holds; the residual is added to in place."""
    monkeypatch.setattr(attention, "rotary_paged_attention", lambda *args: None)
    config = ModelConfig.from_hf(json.loads((SHAPES / "llama-3.2-1b" / "config.json").read_text()))
    layer = filled(DecoderLayer(config, 0).to(DEVICE, BF16))
    layer.attention.fuses_rotary = True
    rows, hidden = 16384, config.hidden_size
    addend, residual = (torch.randn(rows, hidden, device=DEVICE, dtype=BF16) for _ in range(2))
    rotary = torch.zeros(rows, config.head_dim, device=DEVICE)
    expected = rows * (2 * config.intermediate_size + hidden) * 2
    peak = peak_bytes(lambda: layer(addend, residual, rotary))
    assert expected <= peak <= expected + SLACK, f"{peak / MIB:.1f} MiB"


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(("hidden", "inner"), [(2048, 8192), (576, 1536), (96, 200)])
@pytest.mark.parametrize("rows", [129, 500, 2048])
def test_gating_in_place_changes_no_bit(rows, hidden, inner, dtype, has_bias):
    """Neither of the gated values nor of the product by them, whose rows then lie twice as far apart."""
    torch.manual_seed(0)
    mlp = filled(GatedMLP(hidden, inner, has_bias=has_bias).to(DEVICE, dtype))
    gate_up = torch.randn(rows, 2 * inner, device=DEVICE).to(dtype)
    apart = silu_mul(gate_up)
    expected = mlp.down(apart)
    inside = silu_mul(gate_up, is_in_place=True)
    assert inside.data_ptr() == gate_up.data_ptr() and torch.equal(inside, apart)
    assert torch.equal(mlp.down(inside), expected)
