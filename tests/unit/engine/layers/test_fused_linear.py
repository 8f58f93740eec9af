"""The fused ops in their form without kernels, which every device runs, and who chooses the form."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.engine.layers import FusedLinears, GatedMLP, Linear, RMSNorm, fused_linear, takes_one_row_path
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import LinearKind, LinearTiles
from ostinato.engine.layers.mlp import silu_mul


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


def test_gated_rows_beyond_our_kernels_lie_in_the_memory_of_gate_and_up(as_on_cuda):
    """A kernel of ours would copy such rows, so what may reach one is contiguous, whoever made gate and up."""
    gate_up, linears = filled(Linear(8, 10)), FusedLinears(Spy())
    x = torch.randn(129, 8)
    gate, up = gate_up(x).chunk(2, dim=-1)
    out = linears.gated_linear(x, gate_up)
    assert torch.equal(out, silu(gate) * up)
    assert out.stride() == (10, 1) and out.untyped_storage().nbytes() == 129 * 10 * 4
    assert linears.gated_linear(x[:128], gate_up).is_contiguous()


class Ops(TorchDispatchMode):
    """Names of the ops that reach a device, those that torch makes of a composite one."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_bias", [False, True])
def test_torch_multiplies_by_rows_that_lie_apart_without_a_copy(linears, has_bias):
    mlp = filled(GatedMLP(8, 12, has_bias=has_bias))
    x = torch.randn(200, 8)
    expected = mlp.down(silu_mul(mlp.gate_up(x)))
    with Ops() as ops:  # where gradients are recorded, linear comes as what it is made of
        out = linears.split_linear(linears.gated_linear(x, mlp.gate_up), mlp.down)
    product = "addmm" if has_bias else "mm"
    moves = [name for name in ops.names if name not in ("t", "transpose", "split", "detach", "slice")]
    assert moves == [product, "silu_", "mul_", product]
    torch.testing.assert_close(out, expected)


def test_a_traced_mlp_writes_nothing_in_place(linears):
    mlp, graphs = filled(GatedMLP(8, 12, has_bias=False)), []

    def keep(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    x = torch.randn(200, 8)
    with torch.no_grad():
        traced = torch.compile(lambda x: linears.gated_linear(x, mlp.gate_up), backend=keep, fullgraph=True)
        assert torch.equal(traced(x), linears.gated_linear(x, mlp.gate_up))
    assert "silu" in graphs[0] and "mul_" not in graphs[0] and "inplace = True" not in graphs[0]


def test_a_cpu_never_takes_the_path_of_one_row():
    assert not takes_one_row_path(torch.zeros(1, 8, dtype=torch.bfloat16))
