"""The compiled kernels of linear layers of up to 128 rows: against float32 torch, the same every time, early or not."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch.nn.functional import silu

from ostinato.engine.layers import FusedLinears, Linear, RMSNorm
from ostinato.engine.layers.kernel_choice import takes_linear_kernels
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, candidate_tiles, row_bucket
from ostinato.engine.layers.rms_norm import rms_norm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
]

DEVICE = "cuda"
BF16, F16 = torch.bfloat16, torch.float16
TOLERANCE = {BF16: 2e-2, F16: 6e-3}
# hidden, intermediate, width of queries, keys and values
SHAPES = {"1b": (2048, 8192, 3072), "8b": (4096, 14336, 6144), "smollm2": (576, 1536, 960), "odd": (96, 200, 104)}
ROWS = [1, 2, 3, 8, 16, 29, 64, 100, 128]


class Layer:
    """The linear layers of one block with random weights; what `step` computes is the block without attention."""

    def __init__(self, size, *, dtype=BF16, has_bias=False, seed=0):
        torch.manual_seed(seed)
        hidden, intermediate, qkv = SHAPES[size]
        self.hidden, self.qkv_width = hidden, qkv
        self.norms = [RMSNorm(hidden, 1e-5).to(DEVICE, dtype) for _ in range(2)]
        shapes = {"qkv": (hidden, qkv), "out": (qkv, hidden), "gate_up": (hidden, 2 * intermediate)}
        shapes["down"] = (intermediate, hidden)
        self.projections = {n: Linear(*s, has_bias=has_bias).to(DEVICE, dtype) for n, s in shapes.items()}
        for norm in self.norms:
            norm.weight.uniform_(0.5, 1.5)
        for layer in self.projections.values():
            layer.weight.normal_(0.0, layer.weight.shape[1] ** -0.5)
            if layer.bias is not None:
                layer.bias.normal_()

    def step(self, linears, residual):
        """Writes ``residual``; gives what it holds afterwards."""
        p = self.projections
        if residual.shape[0] == 1:
            qkv = linears.norm_linear(residual, self.norms[0], p["qkv"].weight, p["qkv"].bias)
            residual = linears.linear_add(residual, qkv, p["out"])
            gated = linears.norm_gated_linear(residual, self.norms[1], p["gate_up"])
            return linears.linear_add(residual, gated, p["down"])
        qkv = linears.linear(self.norms[0](residual), p["qkv"].weight, p["qkv"].bias)
        normed, residual = self.norms[1].add(linears.split_linear(qkv, p["out"]), residual)
        addend = linears.split_linear(linears.gated_linear(normed, p["gate_up"]), p["down"])
        return self.norms[1].add(addend, residual)[1]


def product(x, layer, norm=None):
    wide = x.float()
    if norm is not None:
        wide = rms_norm(wide, norm.weight.float(), norm.eps)
    return wide @ layer.weight.float().T + (0.0 if layer.bias is None else layer.bias.float())


def close(out, expected):
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        yield
    torch.backends.cuda.matmul.allow_tf32 = before


def check_ops(layer, linears, rows, dtype):
    p = layer.projections
    x = 2.0 * torch.randn(rows, layer.hidden, device=DEVICE).to(dtype)
    assert takes_linear_kernels(x)
    if rows == 1:
        qkv = linears.norm_linear(x, layer.norms[0], p["qkv"].weight, p["qkv"].bias)
        gated = linears.norm_gated_linear(x, layer.norms[1], p["gate_up"])
        norms = layer.norms
    else:
        qkv, gated = linears.linear(x, p["qkv"].weight, p["qkv"].bias), linears.gated_linear(x, p["gate_up"])
        norms = None, None
    close(qkv, product(x, p["qkv"], norms[0]))
    gate, up = product(x, p["gate_up"], norms[1]).chunk(2, dim=-1)
    close(gated, silu(gate) * up)
    for name in ("out", "down"):
        inputs = torch.randn(rows, p[name].weight.shape[1], device=DEVICE).to(dtype)
        residual = torch.randn(rows, layer.hidden, device=DEVICE).to(dtype)
        expected = product(inputs, p[name]) + residual.float()
        if rows == 1:
            out = linears.linear_add(residual, inputs, p[name])
        else:
            _, out = layer.norms[0].add(linears.split_linear(inputs, p[name]), residual)
        assert out.data_ptr() == residual.data_ptr()
        close(out, expected)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("size", list(SHAPES))
def test_ops(size, has_bias, dtype):
    if size == "8b" and has_bias:
        pytest.skip("covered by the smaller sizes")
    layer = Layer(size, dtype=dtype, has_bias=has_bias)
    for rows in ROWS:
        check_ops(layer, FusedLinears(), rows, dtype)


def test_head():
    torch.manual_seed(0)
    norm, head = RMSNorm(2048, 1e-5).to(DEVICE, BF16), Linear(2048, 128256).to(DEVICE, BF16)
    norm.weight.uniform_(0.5, 1.5)
    head.weight.normal_(0.0, 2048**-0.5)
    x = torch.randn(1, 2048, device=DEVICE).to(BF16)
    close(FusedLinears().norm_linear(x, norm, head.weight), product(x, head, norm))
    for rows in (3, 29, 64):
        x = torch.randn(rows, 2048, device=DEVICE).to(BF16)
        close(FusedLinears().linear(x, head.weight), product(x, head))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1b", "8b", "odd"])
@pytest.mark.parametrize("rows", [1, 13, 64])
def test_every_candidate(size, rows):
    layer = Layer(size)
    p, norm = layer.projections, layer.norms[0]
    x = torch.randn(rows, layer.hidden, device=DEVICE).to(BF16)
    inputs = torch.randn(rows, p["down"].weight.shape[1], device=DEVICE).to(BF16)
    one_row = {
        LinearKind.NORM_LINEAR: ("qkv", lambda f, r: f.norm_linear(x, norm, p["qkv"].weight)),
        LinearKind.NORM_GATED_LINEAR: ("gate_up", lambda f, r: f.norm_gated_linear(x, norm, p["gate_up"])),
        LinearKind.LINEAR_ADD: ("down", lambda f, r: f.linear_add(r, inputs, p["down"])),
    }
    more_rows = {
        LinearKind.LINEAR: ("qkv", lambda f, r: f.linear(x, p["qkv"].weight)),
        LinearKind.GATED_LINEAR: ("gate_up", lambda f, r: f.gated_linear(x, p["gate_up"])),
        LinearKind.SPLIT_LINEAR: ("down", lambda f, r: norm.add(f.split_linear(inputs, p["down"]), r)[0]),
    }
    for kind, (name, run) in (one_row if rows == 1 else more_rows).items():
        columns, depth = p[name].weight.shape
        shape = LinearShape(
            kind=kind,
            num_rows=row_bucket(rows),
            out_features=columns // (2 if kind.is_gated else 1),
            in_features=depth,
            dtype="bfloat16",
        )
        results = []
        for tiles in (None, *candidate_tiles(shape)):
            linears = FusedLinears(LinearTable(choices={shape: tiles}))
            results.append(run(linears, torch.zeros(rows, layer.hidden, device=DEVICE, dtype=BF16)).clone())
        for result in results[1:]:
            close(result, results[0].float())


@pytest.mark.parametrize("rows", [1, 4, 29, 128])
@pytest.mark.parametrize("size", ["1b", "smollm2"])
def test_runs_give_the_same_bits(size, rows):
    layer, linears = Layer(size), FusedLinears()
    x = torch.randn(rows, layer.hidden, device=DEVICE).to(BF16)
    first = layer.step(linears, x.clone()).clone()
    assert first.isfinite().all()
    for _ in range(20):
        assert torch.equal(layer.step(linears, x.clone()), first)


@pytest.mark.parametrize("rows", [1, 3, 32, 128])
@pytest.mark.parametrize("size", ["1b", "smollm2", "odd"])
def test_early_launches_give_the_same_bits_in_a_replayed_graph(size, rows):
    """Twelve blocks in a chain, each kernel started early; a missing wait would read what is not yet written."""
    layers = [Layer(size, seed=seed) for seed in range(12)]
    stream = torch.zeros(rows, SHAPES[size][0], device=DEVICE, dtype=BF16)
    graphs, outputs = [], []
    for use_pdl in (False, True):
        linears = FusedLinears(use_pdl=use_pdl)

        def run(linears=linears):
            residual = stream.clone()
            for layer in layers:
                residual = layer.step(linears, residual)
            return residual

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs.append(run())
        graphs.append(graph)
    for turn in range(50):
        torch.manual_seed(turn)
        stream.copy_(torch.randn(stream.shape, device=DEVICE))
        for graph in graphs:
            graph.replay()
        assert outputs[0].isfinite().all()
        assert torch.equal(outputs[0], outputs[1]), f"replay {turn}"
    eager = stream.clone()
    for layer in layers:
        eager = layer.step(FusedLinears(), eager)
    assert torch.equal(eager, outputs[1])


@pytest.mark.parametrize("rows", [1, 29])
def test_back_to_back_replays_wait_for_each_other(rows):
    """The first kernel of a replay must not start before the input of that replay is there."""
    layer, linears = Layer("1b"), FusedLinears()
    stream = torch.zeros(rows, 2048, device=DEVICE, dtype=BF16)
    layer.step(linears, stream.clone())
    inputs = torch.randn(50, rows, 2048, device=DEVICE).to(BF16)
    expected = [layer.step(FusedLinears(use_pdl=False), x.clone()).clone() for x in inputs]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.step(linears, stream)  # in place: what a replay leaves is its result
    results = []
    for x in inputs:
        stream.copy_(x)
        graph.replay()
        results.append(stream.clone())
    for result, value in zip(results, expected, strict=True):
        assert torch.equal(result, value)
