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
from ostinato.engine.layers import FusedLinears, Linear, RMSNorm, fused_linear
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import LinearKind, LinearTiles
from ostinato.engine.layers.rms_norm import rms_norm
from ostinato.engine.layers.triton.matrix_linear import matrix_launch
from ostinato.engine.layers.triton.rms_norm import launch_rms_norm
from ostinato.engine.models import ModelConfig, build_model, decoder, decoder_layer

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_interpreted_kernels.py instead"

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
# The interpreter multiplies no bfloat16 matrices; tests/gpu does.
ONE_ROW = [torch.float32, torch.bfloat16, torch.float16]
ROWS_AND_DTYPES = [(2, torch.float32), (7, torch.float16), (16, torch.float32), (40, torch.float16)]
SIZES = [(64, 128), (40, 96), (50, 320)]  # whole tiles; odd widths; depth of several tiles and a rest


class FixedTiles(LinearTable):
    """Small tiles, so that every loop turns more than once."""

    def choose(self, shape):
        if shape.kind.serves_one_row:
            return LinearTiles(block_n=4, block_k=64, num_warps=4)
        splits = 2 if shape.kind is LinearKind.SPLIT_LINEAR else 1
        return LinearTiles(block_n=16, block_k=64, num_warps=4, num_stages=2, num_splits=splits)


@pytest.fixture
def linears(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(fused_linear, "takes_triton", lambda x: True)
    monkeypatch.setattr(fused_linear, "takes_linear_kernels", lambda x: True)
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
@pytest.mark.parametrize("dtype", ONE_ROW)
def test_norm_linear(linears, dtype, columns, depth, has_bias):
    layer, norm = projection(columns, depth, dtype, has_bias=has_bias), norm_of(depth, dtype)
    x = 3.0 * torch.randn(1, depth).to(dtype)
    close(linears.norm_linear(x, norm, layer.weight, layer.bias), product(x, layer, norm))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize("dtype", ONE_ROW)
def test_linear_add(linears, dtype, columns, depth, has_bias):
    layer = projection(columns, depth, dtype, has_bias=has_bias)
    x, residual = torch.randn(1, depth).to(dtype), torch.randn(1, columns).to(dtype)
    expected = product(x, layer) + residual.float()
    out = linears.linear_add(residual, x, layer)
    assert out.data_ptr() == residual.data_ptr()
    close(out, expected)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize("dtype", ONE_ROW)
def test_norm_gated_linear(linears, dtype, columns, depth, has_bias):
    layer, norm = projection(2 * columns, depth, dtype, has_bias=has_bias), norm_of(depth, dtype)
    x = torch.randn(1, depth).to(dtype)
    gate, up = product(x, layer, norm).chunk(2, dim=-1)
    close(linears.norm_gated_linear(x, norm, layer), silu(gate) * up)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize(("rows", "dtype"), ROWS_AND_DTYPES)
def test_linear(linears, rows, dtype, columns, depth, has_bias):
    layer = projection(columns, depth, dtype, has_bias=has_bias)
    x = torch.randn(rows, depth).to(dtype)
    close(linears.linear(x, layer.weight, layer.bias), product(x, layer))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize(("rows", "dtype"), ROWS_AND_DTYPES)
def test_gated_linear(linears, rows, dtype, columns, depth, has_bias):
    layer = projection(2 * columns, depth, dtype, has_bias=has_bias)
    x = torch.randn(rows, depth).to(dtype)
    gate, up = product(x, layer).chunk(2, dim=-1)
    close(linears.gated_linear(x, layer), silu(gate) * up)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize(("rows", "dtype"), ROWS_AND_DTYPES)
def test_split_linear_and_the_norm_that_sums_its_parts(linears, rows, dtype, columns, depth, has_bias):
    layer, norm = projection(columns, depth, dtype, has_bias=has_bias), norm_of(columns, dtype)
    x, residual = torch.randn(rows, depth).to(dtype), torch.randn(rows, columns).to(dtype)
    parts = linears.split_linear(x, layer)
    assert parts.shape == (2, rows, columns) and parts.dtype == torch.float32
    stream = product(x, layer) + residual.float()
    normed = launch_rms_norm(parts, residual, norm.weight, norm.eps)
    close(residual, stream)
    close(normed, rms_norm(stream, norm.weight.float(), norm.eps))


def test_a_gated_tile_wider_than_what_is_prefetched():
    """Of 512 rows of the weight, whose first lines alone are more than a program asks for in advance."""
    layer = projection(1024, 64, torch.float32, has_bias=False)
    x, out = torch.randn(3, 64), torch.empty(3, 512)
    tiles = LinearTiles(block_n=256, block_k=64, num_warps=4)
    matrix_launch(x.dtype, out.dtype, 3, 512, 64, tiles, is_gated=True)(x, layer.weight, None, out)
    gate, up = product(x, layer).chunk(2, dim=-1)
    close(out, silu(gate) * up)


@pytest.mark.parametrize("has_residual", [False, True])
def test_a_norm_of_no_rows(has_residual):
    """The logits of a step that samples nothing: the first chunk of a long prompt."""
    x, norm = torch.empty(0, 64), norm_of(64, torch.float32)
    out = launch_rms_norm(x, torch.empty(0, 64) if has_residual else None, norm.weight, norm.eps)
    assert out.shape == (0, 64)


def test_float16_holds_a_stream_whose_square_it_does_not(linears):
    layer, norm = projection(40, 96, torch.float16, has_bias=False), norm_of(96, torch.float16)
    norm.weight.mul_(8.0)
    x = 2e4 * torch.randn(1, 96).clamp(-3, 3).to(torch.float16)
    expected = product(x, layer, norm)
    out = linears.norm_linear(x, norm, layer.weight)
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=3e-2)


def test_rows_do_not_touch_each_other(linears):
    """A padded row may hold anything."""
    layer = projection(40, 96, torch.float32, has_bias=False)
    x = torch.randn(5, 96)
    expected = linears.split_linear(x, layer)
    x[2] = float("nan")
    out = linears.split_linear(x, layer)
    live = [row for row in range(5) if row != 2]
    assert torch.equal(out[:, live], expected[:, live]) and out[:, 2].isnan().all()


@pytest.mark.parametrize("num_reqs", [1, 3, 5])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_model_gives_the_same_logits_with_kernels_and_without(monkeypatch, linears, model_type, num_reqs):
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

    with monkeypatch.context() as patch:
        patch.setattr(fused_linear, "takes_triton", lambda x: False)
        plain = logits()
    calls = []
    for module in (decoder, decoder_layer):
        monkeypatch.setattr(module, "takes_one_row_path", lambda x: calls.append(x.shape) or x.shape[0] == 1)
    torch.testing.assert_close(logits(), plain, rtol=1e-4, atol=1e-4)
    if num_reqs == 1:
        assert len(calls) == 3, "two layers and the head ask"
