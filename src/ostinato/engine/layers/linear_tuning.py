"""Measuring which kernel and which tiles are fastest for linear layers of up to 128 rows on this device.

Each candidate runs as a chain in a CUDA graph, so that launches cost what they cost in serving, over copies
of the weight that no cache holds. Most of the time goes into compiling candidates (kept by triton's own
cache), so an engine measures only when it is asked to, once a machine; else it reads what is stored.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ostinato.engine.layers.fused_linear import FusedLinears
from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.linear_table import LinearTable, load_table, save_table, table_key
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, LinearTiles, candidate_tiles
from ostinato.engine.layers.rms_norm import RMSNorm

__all__ = ["LinearTiming", "measure_shape", "tune_linears", "weight_bytes"]

# More than the L2 cache of any device (50 MiB on an H200), twice over.
_ROTATED_BYTES = 160 * 2**20
_MIN_LAUNCHES = 12
_REPLAYS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearTiming:
    """One candidate, measured."""

    shape: LinearShape
    tiles: LinearTiles | None
    """None: cuBLAS, with norm, gating and addition beside it."""
    time_us: float
    """Median of one op within a chain; infinite if it did not compile or run."""


def tune_linears(
    shapes: Iterable[LinearShape],
    *,
    device: torch.device,
    root: Path,
    use_pdl: bool = True,
    on_shape: Callable[[LinearTiming], None] | None = None,
) -> LinearTable:
    """The table for ``shapes``: what is stored under the cache folder ``root``, completed by measuring the rest.

    Args:
        shapes: see `linear_shapes`.
        device: a CUDA device with nothing else running; up to 700 MB are needed for a while.
        root: what is measured is stored here, if it can be written.
        use_pdl: whether serving will launch kernels early.
        on_shape: told of the fastest candidate of each shape that was measured.
    """
    key = table_key(device, use_pdl=use_pdl)
    table = load_table(root, key)
    missing = [shape for shape in shapes if shape not in table.choices]
    if not missing:
        return table
    choices = dict(table.choices)
    for shape in missing:
        best = min(measure_shape(shape, device=device, use_pdl=use_pdl), key=lambda timing: timing.time_us)
        choices[shape] = best.tiles
        if on_shape is not None:
            on_shape(best)
    table = LinearTable(choices=choices)
    save_table(root, key, table)
    return table


@torch.inference_mode()
def measure_shape(
    shape: LinearShape,
    *,
    device: torch.device,
    use_pdl: bool = True,
    tiles: Iterable[LinearTiles | None] | None = None,
) -> list[LinearTiming]:
    """Every candidate of ``shape``, or each of ``tiles``, timed."""
    chain = _Chain(shape, device)
    timings = []
    for candidate in (None, *candidate_tiles(shape)) if tiles is None else tiles:
        linears = FusedLinears(LinearTable(choices={shape: candidate}), use_pdl=use_pdl)
        try:
            time_us = chain.time_us(linears)
        except _compile_errors():  # more shared memory or registers than this device has
            time_us = math.inf
        timings.append(LinearTiming(shape=shape, tiles=candidate, time_us=time_us))
    return timings


def weight_bytes(shape: LinearShape) -> int:
    """Bytes of the weight, which is nearly all that is read."""
    halves = 2 if shape.kind.is_gated else 1
    return halves * shape.out_features * shape.in_features * int(getattr(torch, shape.dtype).itemsize)


class _Chain:
    """One op after another on different copies of the weight, as the layers of a model have them."""

    def __init__(self, shape: LinearShape, device: torch.device) -> None:
        self._shape, self._device = shape, device
        dtype: torch.dtype = getattr(torch, shape.dtype)
        copies = max(2, -(-_ROTATED_BYTES // weight_bytes(shape)))
        halves = 2 if shape.kind.is_gated else 1
        with torch.device("meta"):
            layers = [Linear(shape.in_features, halves * shape.out_features) for _ in range(copies)]
            self._norm = RMSNorm(shape.in_features, 1e-5)
            self._next_norm = RMSNorm(shape.out_features, 1e-5)
        scale = shape.in_features**-0.5
        for layer in layers:
            weight = torch.empty(layer.weight.shape, dtype=dtype, device=device).normal_(0.0, scale)
            layer.weight = nn.Parameter(weight, requires_grad=False)
        for norm in (self._norm, self._next_norm):
            ones = torch.ones(norm.weight.shape, dtype=dtype, device=device)
            norm.weight = nn.Parameter(ones, requires_grad=False)
        self._layers = [layers[i % copies] for i in range(max(copies, _MIN_LAUNCHES))]
        self._x = torch.randn(shape.num_rows, shape.in_features, device=device).to(dtype)
        self._residual = torch.zeros(shape.num_rows, shape.out_features, dtype=dtype, device=device)

    def time_us(self, linears: FusedLinears) -> float:
        """Of one op."""
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._op(linears, self._layers[0])  # compiles
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for layer in self._layers:
                self._op(linears, layer)
        times = []
        for _ in range(_REPLAYS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        graph.reset()
        return float(statistics.median(times[1:])) * 1e3 / len(self._layers)

    def _op(self, linears: FusedLinears, layer: Linear) -> Tensor:
        match self._shape.kind:
            case LinearKind.NORM_LINEAR:
                return linears.norm_linear(self._x, self._norm, layer.weight)
            case LinearKind.NORM_GATED_LINEAR:
                return linears.norm_gated_linear(self._x, self._norm, layer)
            case LinearKind.LINEAR_ADD:
                return linears.linear_add(self._residual, self._x, layer)
            case LinearKind.LINEAR:
                return linears.linear(self._x, layer.weight)
            case LinearKind.GATED_LINEAR:
                return linears.gated_linear(self._x, layer)
            case LinearKind.SPLIT_LINEAR:  # with the norm that sums its parts
                return self._next_norm.add(linears.split_linear(self._x, layer), self._residual)[0]


def _compile_errors() -> tuple[type[Exception], ...]:
    try:
        from triton import CompilationError, OutOfResources
    except ImportError:
        return ()
    return (CompilationError, OutOfResources)
