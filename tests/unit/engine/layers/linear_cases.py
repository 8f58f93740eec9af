"""The fused linear kernels' logic against plain torch; `test_interpreted_kernels.py` runs this file."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn.functional import silu

from ostinato.engine.attention import (
    AttentionMetadata,
    ForwardContext,
    get_attention_backend,
    set_forward_context,
)
from ostinato.engine.kvcache import allocate_caches
from ostinato.engine.layers import FusedLinears, Linear, RMSNorm
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import MAX_VECTOR_ROWS, LinearTiles
from ostinato.engine.layers.rms_norm import rms_norm
from ostinato.engine.models import ModelConfig, build_model, decoder, decoder_layer

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_interpreted_kernels.py instead"

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
# The interpreter multiplies no bfloat16 matrices; tests/gpu does.
ROWS_AND_DTYPES = [(1, torch.float32), (1, torch.bfloat16), (2, torch.float32), (3, torch.float16)]
ROWS_AND_DTYPES += [(7, torch.float16), (16, torch.float32)]
SIZES = [(64, 128), (40, 96), (50, 320)]  # whole tiles; odd widths; depth of several tiles and a rest


class FixedTiles(LinearTable):
    """Small tiles, so that every loop turns more than once."""

    def choose(self, shape):
        if shape.num_rows <= MAX_VECTOR_ROWS:
            return LinearTiles(block_n=4, block_k=64, num_warps=4)
        return LinearTiles(block_n=16, block_k=64, num_warps=4, uses_tensor_cores=True, num_stages=2)


@pytest.fixture
def linears():
    torch.manual_seed(0)
    return FusedLinears(FixedTiles())


def projection(columns, depth, dtype, *, has_bias):
    layer = Linear(depth, columns, has_bias=has_bias).to(dtype)
    layer.weight.normal_(0.0, depth**-0.5)
    if has_bias:
        layer.bias.normal_()
    return layer


def norm_of(depth, dtype):
    norm = RMSNorm(depth, 1e-5).to(dtype)
    norm.weight.uniform_(0.5, 1.5)
    return norm


def product(x, layer, norm=None):
    wide = x.float()
    if norm is not None:
        wide = rms_norm(wide, norm.weight.float(), norm.eps)
    return wide @ layer.weight.float().T + (0.0 if layer.bias is None else layer.bias.float())


def close(out, expected):
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize(("rows", "dtype"), ROWS_AND_DTYPES)
def test_norm_linear(linears, rows, dtype, columns, depth, has_bias):
    layer, norm = projection(columns, depth, dtype, has_bias=has_bias), norm_of(depth, dtype)
    x = 3.0 * torch.randn(rows, depth).to(dtype)
    close(linears.norm_linear(x, norm, layer.weight, layer.bias), product(x, layer, norm))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize(("rows", "dtype"), ROWS_AND_DTYPES)
def test_linear_add(linears, rows, dtype, columns, depth, has_bias):
    layer = projection(columns, depth, dtype, has_bias=has_bias)
    x, residual = torch.randn(rows, depth).to(dtype), torch.randn(rows, columns).to(dtype)
    expected = product(x, layer) + residual.float()
    out = linears.linear_add(residual, x, layer)
    assert out.data_ptr() == residual.data_ptr()
    close(out, expected)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize(("rows", "dtype"), ROWS_AND_DTYPES)
def test_norm_gated_linear(linears, rows, dtype, columns, depth, has_bias):
    layer, norm = projection(2 * columns, depth, dtype, has_bias=has_bias), norm_of(depth, dtype)
    x = torch.randn(rows, depth).to(dtype)
    gate, up = product(x, layer, norm).chunk(2, dim=-1)
    close(linears.norm_gated_linear(x, norm, layer), silu(gate) * up)


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_float16_holds_a_stream_whose_square_it_does_not(linears, rows):
    layer, norm = projection(40, 96, torch.float16, has_bias=False), norm_of(96, torch.float16)
    norm.weight.mul_(8.0)
    x = 2e4 * torch.randn(rows, 96).clamp(-3, 3).to(torch.float16)
    expected = product(x, layer, norm)
    out = linears.norm_linear(x, norm, layer.weight)
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=3e-2)


@pytest.mark.parametrize("rows", [4, 5])
def test_rows_do_not_touch_each_other(linears, rows):
    """A padded row may hold anything."""
    layer, norm = projection(40, 96, torch.float32, has_bias=False), norm_of(96, torch.float32)
    x = torch.randn(rows, 96)
    expected = linears.norm_linear(x, norm, layer.weight)
    x[2] = float("nan")
    out = linears.norm_linear(x, norm, layer.weight)
    live = [row for row in range(rows) if row != 2]
    assert torch.equal(out[live], expected[live]) and out[2].isnan().all()


@pytest.mark.parametrize("num_reqs", [1, 3, 5])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_model_gives_the_same_logits_on_either_path(monkeypatch, linears, model_type, num_reqs):
    hf = {
        "model_type": model_type,
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[model_type]],
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "vocab_size": 70,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    config = ModelConfig.from_hf(hf)
    model = build_model(config, device="cpu", dtype=torch.float32)
    model.init_dummy(0)
    for parameter in model.parameters():
        parameter.mul_(4.0)
    model.bind_linears(linears)
    metadata = AttentionMetadata(
        num_tokens=num_reqs,
        slot_mapping=torch.arange(16, 16 + num_reqs),
        block_tables=torch.ones(num_reqs, 1, dtype=torch.int32),
        seq_lens=torch.ones(num_reqs, dtype=torch.int32),
        query_start=torch.arange(num_reqs + 1, dtype=torch.int32),
        uniform_query_len=1,
        host_query_lens=(1,) * num_reqs,
        host_seq_lens=(1,) * num_reqs,
    )
    ids, positions = torch.arange(num_reqs) + 5, torch.zeros(num_reqs, dtype=torch.int64)

    def logits():
        caches = allocate_caches(
            num_layers=2,
            num_pages=2,
            page_size=16,
            num_kv_heads=1,
            head_dim=config.head_dim,
            dtype=torch.float32,
            device="cpu",
        )
        context = ForwardContext(metadata, caches, get_attention_backend("torch", "cpu"))
        with torch.inference_mode(), set_forward_context(context):
            return model.compute_logits(model(ids, positions))

    plain = logits()
    calls = []
    for module in (decoder, decoder_layer):
        monkeypatch.setattr(module, "takes_fused_linears", lambda x: calls.append(x.shape) or True)
    torch.testing.assert_close(logits(), plain, rtol=1e-4, atol=1e-4)
    assert len(calls) == 3, "two layers and the head ask"
