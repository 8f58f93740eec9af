"""The fused ops in their form without fused kernels, which every device runs, and who chooses the form."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.layers import FusedLinears, GatedMLP, Linear, RMSNorm, takes_fused_linears
from ostinato.engine.layers.linear_table import LinearTable


class Unfused(LinearTable):
    def choose(self, shape):
        return None


@pytest.fixture
def linears():
    torch.manual_seed(0)
    return FusedLinears(Unfused())


def filled(module):
    for parameter in module.parameters():
        parameter.normal_()
    return module


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_block_in_fused_ops_is_the_block(linears, has_bias):
    norm, mlp = filled(RMSNorm(8, 1e-5)), filled(GatedMLP(8, 12, has_bias=has_bias))
    residual = torch.randn(3, 8)
    expected = residual + mlp(norm(residual))
    gated = linears.norm_gated_linear(residual, norm, mlp.gate_up)
    out = linears.linear_add(residual, gated, mlp.down)
    assert out.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


def test_norm_linear(linears):
    norm, layer = filled(RMSNorm(8, 1e-5)), filled(Linear(8, 5, has_bias=True))
    x = torch.randn(2, 8)
    torch.testing.assert_close(linears.norm_linear(x, norm, layer.weight, layer.bias), layer(norm(x)))


def test_the_table_is_asked_once_a_shape_by_bucket():
    asked = []

    class Spy(LinearTable):
        def choose(self, shape):
            asked.append(shape)
            return None

    linears, norm, layer = FusedLinears(Spy()), filled(RMSNorm(8, 1e-5)), filled(Linear(8, 5))
    for num_rows in (3, 3, 4):
        linears.norm_linear(torch.randn(num_rows, 8), norm, layer.weight)
    assert [(s.num_rows, s.out_features, s.in_features, s.dtype) for s in asked] == [(4, 5, 8, "float32")] * 2


def test_a_cpu_never_takes_the_path_of_few_rows():
    assert not takes_fused_linears(torch.zeros(1, 8, dtype=torch.bfloat16))
