"""Linear layers of up to 128 rows fused with what surrounds them; each op picks kernel or cuBLAS by shape alone.

Three ops serve steps of one row, whose time is that of reading weights and of launching kernels: norm, gating and
residual are in them, so the stream is always complete. Three serve the others: what they leave to add to the stream,
in parts where that is faster, is added by the next norm. Called by `DecoderLayer` and `DecoderModel`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ostinato.engine.kernels.launcher import Launch
from ostinato.engine.layers.kernel_choice import takes_linear_kernels, takes_triton
from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import MAX_ROWS, LinearKind, LinearShape, LinearTiles, row_bucket, shared_bytes
from ostinato.engine.layers.mlp import silu_mul
from ostinato.engine.layers.rms_norm import RMSNorm

__all__ = ["FusedLinears"]

_NO_STRIDES = "kernels know no strides"


class FusedLinears:
    """The fused ops. One instance may serve all layers of a model, which are on one device; it holds no tensors.

    Args:
        table: measured choices; the defaults without.
        use_pdl: launch kernels early (`programmatic_launch`) where the device can.
    """

    def __init__(self, table: LinearTable | None = None, *, use_pdl: bool = True) -> None:
        self.table = LinearTable() if table is None else table
        self.use_pdl = use_pdl
        self._kernels: dict[tuple[object, ...], _Kernel | None] = {}

    def norm_linear(
        self, x: Tensor, norm: RMSNorm, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
    ) -> Tensor:
        """``norm(x) @ weight.T + bias``: [1, in_features] -> [1, out_features], in ``out`` if given."""
        kernel = self._kernel(LinearKind.NORM_LINEAR, x, weight, bias, norm.eps)
        if kernel is None:
            return _linear(norm(x), weight, bias, out)
        out = x.new_empty(kernel.out_shape) if out is None else out
        assert out.is_contiguous(), _NO_STRIDES
        kernel.launch(x.contiguous(), norm.scale, weight, bias, None, out)
        return out

    def linear_add(self, residual: Tensor, x: Tensor, projection: Linear) -> Tensor:
        """``residual + x @ weight.T + bias``, written into ``residual``'s memory: [1, out_features]."""
        weight, bias = projection.tensors()
        kernel = self._kernel(LinearKind.LINEAR_ADD, x, weight, bias)
        if kernel is None:
            if bias is not None:
                residual += bias
            return residual.addmm_(x, weight.t())
        assert residual.is_contiguous(), _NO_STRIDES
        kernel.launch(x.contiguous(), None, weight, bias, residual, residual)
        return residual

    def norm_gated_linear(self, x: Tensor, norm: RMSNorm, gate_up: Linear) -> Tensor:
        """``silu(norm(x) @ gate.T) * (norm(x) @ up.T)``, gate and up being the halves of one weight.

        [1, in_features] -> [1, out_features of gate_up / 2].
        """
        weight, bias = gate_up.tensors()
        kernel = self._kernel(LinearKind.NORM_GATED_LINEAR, x, weight, bias, norm.eps)
        if kernel is None:
            return silu_mul(linear(norm(x), weight, bias))
        out = x.new_empty(kernel.out_shape)
        kernel.launch(x.contiguous(), norm.scale, weight, bias, None, out)
        return out

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """``x @ weight.T + bias``: [num_rows, in_features] -> [num_rows, out_features], in ``out`` if given."""
        kernel = self._kernel(LinearKind.LINEAR, x, weight, bias)
        if kernel is None:
            return _linear(x, weight, bias, out)
        out = x.new_empty(kernel.out_shape) if out is None else out
        assert out.is_contiguous(), _NO_STRIDES
        kernel.launch(x.contiguous(), weight, bias, out)
        return out

    def gated_linear(self, x: Tensor, gate_up: Linear) -> Tensor:
        """As `norm_gated_linear` without the norm, for any number of rows.

        Where the next product is torch's too, it lies in the memory of gate and up, rows twice its width apart: torch
        multiplies by such rows as they are, a kernel of ours would have to copy them.
        """
        weight, bias = gate_up.tensors()
        kernel = self._kernel(LinearKind.GATED_LINEAR, x, weight, bias)
        if kernel is None:
            return silu_mul(linear(x, weight, bias), is_in_place=not takes_linear_kernels(x))
        out = x.new_empty(kernel.out_shape)
        kernel.launch(x.contiguous(), weight, bias, out)
        return out

    def split_linear(self, x: Tensor, projection: Linear) -> Tensor:
        """``x @ weight.T + bias`` as `RMSNorm.add` takes it.

        [num_rows, in_features] -> [num_rows, out_features], or parts [num_parts, num_rows, out_features] in float32
        that add up to it.
        """
        weight, bias = projection.tensors()
        kernel = self._kernel(LinearKind.SPLIT_LINEAR, x, weight, bias)
        if kernel is None:
            return linear(x, weight, bias)
        out = x.new_empty(kernel.out_shape, dtype=kernel.out_dtype)
        kernel.launch(x.contiguous(), weight, bias, out)
        return out

    def _kernel(
        self, kind: LinearKind, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float = 0.0
    ) -> _Kernel | None:
        """What the op launches; None: cuBLAS, and kernels or torch beside it."""
        shape = x.shape
        if not takes_triton(x) or shape[0] > MAX_ROWS:  # in this order: a compiler would hold the traced side of sizes
            return None
        key = kind, shape, weight.shape, x.dtype, bias is None, eps
        kernel = self._kernels.get(key)
        if kernel is None and key not in self._kernels:
            columns = weight.shape[0] // (2 if kind.is_gated else 1)
            tiles = self._tiles(kind, x, columns)
            kernel = None if tiles is None else self._new_kernel(kind, tiles, x, columns, bias, eps)
            self._kernels[key] = kernel
        assert weight.is_contiguous(), _NO_STRIDES
        return kernel

    def _tiles(self, kind: LinearKind, x: Tensor, out_features: int) -> LinearTiles | None:
        if not takes_linear_kernels(x):
            return None
        shape = LinearShape(
            kind=kind,
            num_rows=row_bucket(x.shape[0]),
            out_features=out_features,
            in_features=x.shape[1],
            dtype=str(x.dtype).removeprefix("torch."),
        )
        tiles = self.table.choose(shape)
        is_too_large = tiles is not None and shared_bytes(shape, tiles) > _shared_bytes_of(x.device)
        return None if is_too_large else tiles

    def _new_kernel(
        self, kind: LinearKind, tiles: LinearTiles, x: Tensor, out_features: int, bias: Tensor | None, eps: float
    ) -> _Kernel:
        from ostinato.engine.kernels.programmatic_launch import can_launch_early
        from ostinato.engine.layers.triton.matrix_linear import matrix_launch
        from ostinato.engine.layers.triton.vector_linear import vector_launch

        (num_rows, depth), dtype, num_splits = x.shape, x.dtype, tiles.num_splits
        is_gated, has_bias = kind.is_gated, bias is not None
        use_pdl = self.use_pdl and can_launch_early(x.device)
        if kind.serves_one_row:
            has_residual = kind is LinearKind.LINEAR_ADD
            launch = vector_launch(
                dtype, out_features, depth, tiles, eps=None if has_residual else eps, has_bias=has_bias,
                has_residual=has_residual, is_gated=is_gated, use_pdl=use_pdl,
            )  # fmt: skip
            return _Kernel(launch, (1, out_features), dtype)
        out_dtype = dtype if num_splits == 1 else torch.float32
        launch = matrix_launch(
            dtype,
            out_dtype,
            num_rows,
            out_features,
            depth,
            tiles,
            has_bias=has_bias,
            is_gated=is_gated,
            use_pdl=use_pdl,
        )
        parts = () if num_splits == 1 else (num_splits,)
        return _Kernel(launch, (*parts, num_rows, out_features), out_dtype)


class _Kernel(NamedTuple):
    """What one op launches for inputs of one shape."""

    launch: Launch
    """To be given what `vector_launch` or `matrix_launch` says."""
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype


@cache
def _shared_bytes_of(device: torch.device) -> float:
    """Shared memory that one program may have."""
    if device.type != "cuda":  # the interpreter
        return float("inf")
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
    if out is None:
        return linear(x, weight, bias)
    return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
