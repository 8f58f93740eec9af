"""The fused ops in their form without kernels, which every device runs, and who chooses the form."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from ostinato.engine.layers import FusedLinears, GatedMLP, Linear, RMSNorm, fused_linear, takes_one_row_path
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import LinearKind, LinearTiles


@pytest.fixture
def linears():
    torch.manual_seed(0)
    return FusedLinears()


def filled(module):
    for parameter in module.parameters():
        parameter.normal_()
    return module


def block(norm, mlp, residual):
    gate, up = mlp.gate_up(norm(residual)).chunk(2, dim=-1)
    return residual + mlp.down(silu(gate) * up)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_block_in_ops_of_one_row_is_the_block(linears, has_bias):
    norm, mlp = filled(RMSNorm(8, 1e-5)), filled(GatedMLP(8, 12, has_bias=has_bias))
    residual = torch.randn(1, 8)
    expected = block(norm, mlp, residual)
    out = linears.linear_add(residual, linears.norm_gated_linear(residual, norm, mlp.gate_up), mlp.down)
    assert out.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_block_in_ops_of_many_rows_is_the_block(linears, has_bias):
    norm, mlp = filled(RMSNorm(8, 1e-5)), filled(GatedMLP(8, 12, has_bias=has_bias))
    residual = torch.randn(3, 8)
    expected = block(norm, mlp, residual)
    addend = linears.split_linear(linears.gated_linear(norm(residual), mlp.gate_up), mlp.down)
    _, stream = norm.add(addend, residual)
    torch.testing.assert_close(stream, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(linears, has_bias):
    norm, layer = filled(RMSNorm(8, 1e-5)), filled(Linear(8, 5, has_bias=has_bias))
    x, out = torch.randn(1, 8), torch.empty(1, 5)
    torch.testing.assert_close(linears.norm_linear(x, norm, layer.weight, layer.bias), layer(norm(x)))
    assert linears.linear(x, layer.weight, layer.bias, out=out) is out
    torch.testing.assert_close(out, layer(x))


class Launched(Exception):
    """Instead of a kernel."""


class Spy(LinearTable):
    def __init__(self, tiles=None):
        super().__init__()
        self.__dict__.update(tiles=tiles, asked=[])

    def choose(self, shape):
        self.asked.append(shape)
        return self.tiles


@pytest.fixture
def as_on_cuda(monkeypatch):
    def launch(*args, **kwargs):
        raise Launched

    monkeypatch.setattr(fused_linear, "takes_triton", lambda x: True)
    monkeypatch.setattr(fused_linear, "takes_linear_kernels", lambda x: x.shape[0] <= 128)
    monkeypatch.setattr(FusedLinears, "_new_kernel", launch)


def test_the_table_is_asked_once_a_number_of_rows_and_by_bucket(as_on_cuda):
    spy, layer = Spy(), filled(Linear(8, 5))
    linears = FusedLinears(spy)
    for num_rows in (3, 3, 20):
        linears.linear(torch.randn(num_rows, 8), layer.weight)
    assert [(s.kind, s.num_rows, s.out_features, s.in_features, s.dtype) for s in spy.asked] == [
        (LinearKind.LINEAR, 16, 5, 8, "float32"),
        (LinearKind.LINEAR, 32, 5, 8, "float32"),
    ]


def test_more_rows_than_a_kernel_takes_are_left_to_cublas(as_on_cuda):
    spy, layer = Spy(LinearTiles(block_n=16, block_k=64, num_warps=4)), filled(Linear(8, 5))
    x = torch.randn(129, 8)
    torch.testing.assert_close(FusedLinears(spy).linear(x, layer.weight), layer(x))
    assert not spy.asked
    with pytest.raises(Launched):
        FusedLinears(spy).linear(x[:128], layer.weight)


def test_tiles_that_a_device_has_no_room_for_are_left_to_cublas(as_on_cuda, monkeypatch):
    tiles, layer = LinearTiles(block_n=64, block_k=128, num_warps=4, num_stages=5), filled(Linear(8, 5))
    x = torch.randn(3, 8)
    needed = (64 + 16) * 128 * 2 * 5
    monkeypatch.setattr(fused_linear, "_shared_bytes_of", lambda device: needed - 1)
    torch.testing.assert_close(FusedLinears(Spy(tiles)).linear(x, layer.weight), layer(x))
    monkeypatch.setattr(fused_linear, "_shared_bytes_of", lambda device: needed)
    with pytest.raises(Launched):
        FusedLinears(Spy(tiles)).linear(x, layer.weight)


def test_a_cpu_never_takes_the_path_of_one_row():
    assert not takes_one_row_path(torch.zeros(1, 8, dtype=torch.bfloat16))
