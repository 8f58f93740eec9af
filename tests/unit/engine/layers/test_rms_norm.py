"""RMS norm and the gated MLP's product in their torch form."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.layers import FusedLinears, GatedMLP, RMSNorm


@pytest.fixture
def norm():
    norm = RMSNorm(6, 1e-5)
    norm.weight.copy_(torch.arange(1.0, 7.0))
    return norm


def test_norm_divides_by_the_root_mean_square(norm):
    x = torch.randn(4, 6)
    expected = torch.stack([row / (row.pow(2).mean() + 1e-5).sqrt() for row in x]) * norm.weight
    torch.testing.assert_close(norm(x), expected)


def test_add_norms_the_sum_and_returns_it(norm):
    x, residual = torch.randn(4, 6), torch.randn(4, 6)
    total = x + residual
    normed, stream = norm.add(x, residual)
    torch.testing.assert_close(stream, total)
    torch.testing.assert_close(normed, norm(total))


def test_add_takes_parts(norm):
    parts, residual = torch.randn(3, 4, 6), torch.randn(4, 6).to(torch.bfloat16)
    total = (parts.sum(0) + residual).to(torch.bfloat16)
    normed, stream = norm.add(parts, residual)
    assert stream.dtype == normed.dtype == torch.bfloat16
    assert torch.equal(stream, total) and torch.equal(normed, norm(total))


def test_half_precision_is_computed_wide(norm):
    x = torch.full((1, 6), 300.0, dtype=torch.float16)  # the square overflows float16
    assert norm(x).dtype == torch.float16
    torch.testing.assert_close(norm(x)[0].float(), norm.weight.data, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_mlp(has_bias):
    mlp = GatedMLP(4, 6, has_bias=has_bias)
    for parameter in mlp.parameters():
        parameter.normal_()
    x = torch.randn(3, 4)
    gate_weight, up_weight = mlp.gate_up.weight.split(6)
    gate, up = x @ gate_weight.T, x @ up_weight.T
    if has_bias:
        gate, up = gate + mlp.gate_up.bias[:6], up + mlp.gate_up.bias[6:]
    torch.testing.assert_close(FusedLinears().gated_linear(x, mlp.gate_up), gate * torch.sigmoid(gate) * up)
