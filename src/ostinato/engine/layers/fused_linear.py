"""Linear layers of up to 128 rows fused with what surrounds them; each op picks kernel or cuBLAS by shape alone.

Three ops serve steps of one row, whose time is that of reading weights and of launching kernels: norm, gating and
residual are in them, so the stream is always complete. Three serve the others: what they leave to add to the stream,
in parts where that is faster, is added by the next norm. Called by `DecoderLayer` and `DecoderModel`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import linear

from ostinato.engine.layers.kernel_choice import takes_linear_kernels
from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, LinearTiles, row_bucket, shared_bytes
from ostinato.engine.layers.mlp import silu_mul
from ostinato.engine.layers.rms_norm import RMSNorm

__all__ = ["FusedLinears"]


class FusedLinears:
    """The fused ops. One instance may serve all layers; it holds no tensors.

    Args:
        table: measured choices; the defaults without.
        use_pdl: launch kernels early (`programmatic_launch`) where the device can.
    """

    def __init__(self, table: LinearTable | None = None, *, use_pdl: bool = True) -> None:
        self.table = LinearTable() if table is None else table
        self.use_pdl = use_pdl
        self._chosen: dict[tuple[LinearKind, int, int, int, object], LinearTiles | None] = {}

    def norm_linear(
        self, x: Tensor, norm: RMSNorm, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
    ) -> Tensor:
        """``norm(x) @ weight.T + bias``: [1, in_features] -> [1, out_features], in ``out`` if given."""
        tiles = self._tiles(LinearKind.NORM_LINEAR, x, weight.shape[0])
        if tiles is None:
            return _linear(norm(x), weight, bias, out)
        out = x.new_empty((1, weight.shape[0])) if out is None else out
        self._launch_row(x, weight, out, tiles, norm=norm, bias=bias)
        return out

    def linear_add(self, residual: Tensor, x: Tensor, projection: Linear) -> Tensor:
        """``residual + x @ weight.T + bias``, written into ``residual``'s memory: [1, out_features]."""
        tiles = self._tiles(LinearKind.LINEAR_ADD, x, residual.shape[1])
        if tiles is None:
            if projection.bias is not None:
                residual += projection.bias
            return residual.addmm_(x, projection.weight.t())
        self._launch_row(x, projection.weight, residual, tiles, bias=projection.bias, residual=residual)
        return residual

    def norm_gated_linear(self, x: Tensor, norm: RMSNorm, gate_up: Linear) -> Tensor:
        """``silu(norm(x) @ gate.T) * (norm(x) @ up.T)``, gate and up being the halves of one weight.

        [1, in_features] -> [1, out_features of gate_up / 2].
        """
        columns = gate_up.weight.shape[0] // 2
        tiles = self._tiles(LinearKind.NORM_GATED_LINEAR, x, columns)
        if tiles is None:
            return silu_mul(linear(norm(x), gate_up.weight, gate_up.bias))
        out = x.new_empty((1, columns))
        self._launch_row(x, gate_up.weight, out, tiles, norm=norm, bias=gate_up.bias, is_gated=True)
        return out

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """``x @ weight.T + bias``: [num_rows, in_features] -> [num_rows, out_features], in ``out`` if given."""
        tiles = self._tiles(LinearKind.LINEAR, x, weight.shape[0])
        if tiles is None:
            return _linear(x, weight, bias, out)
        out = x.new_empty((x.shape[0], weight.shape[0])) if out is None else out
        self._launch_rows(x, weight, out, tiles, bias=bias)
        return out

    def gated_linear(self, x: Tensor, gate_up: Linear) -> Tensor:
        """As `norm_gated_linear` without the norm, for any number of rows.

        Where the next product is torch's too, it lies in the memory of gate and up, rows twice its width apart: torch
        multiplies by such rows as they are, a kernel of ours would have to copy them.
        """
        columns = gate_up.weight.shape[0] // 2
        tiles = self._tiles(LinearKind.GATED_LINEAR, x, columns)
        if tiles is None:
            return silu_mul(gate_up(x), is_in_place=not takes_linear_kernels(x))
        out = x.new_empty((x.shape[0], columns))
        self._launch_rows(x, gate_up.weight, out, tiles, bias=gate_up.bias, is_gated=True)
        return out

    def split_linear(self, x: Tensor, projection: Linear) -> Tensor:
        """``x @ weight.T + bias`` as `RMSNorm.add` takes it.

        [num_rows, in_features] -> [num_rows, out_features], or parts [num_parts, num_rows, out_features] in float32
        that add up to it.
        """
        columns = projection.weight.shape[0]
        tiles = self._tiles(LinearKind.SPLIT_LINEAR, x, columns)
        if tiles is None:
            return projection(x)  # type: ignore[no-any-return]
        if tiles.num_splits == 1:
            out = x.new_empty((x.shape[0], columns))
        else:
            out = x.new_empty((tiles.num_splits, x.shape[0], columns), dtype=torch.float32)
        self._launch_rows(x, projection.weight, out, tiles, bias=projection.bias)
        return out

    def _tiles(self, kind: LinearKind, x: Tensor, out_features: int) -> LinearTiles | None:
        if not takes_linear_kernels(x):
            return None
        key = (kind, x.shape[0], out_features, x.shape[1], x.dtype)
        if key not in self._chosen:
            shape = LinearShape(
                kind=kind,
                num_rows=row_bucket(x.shape[0]),
                out_features=out_features,
                in_features=x.shape[1],
                dtype=str(x.dtype).removeprefix("torch."),
            )
            tiles = self.table.choose(shape)
            is_too_large = tiles is not None and shared_bytes(shape, tiles) > _shared_bytes_of(x.device)
            self._chosen[key] = None if is_too_large else tiles
        return self._chosen[key]

    def _launch_row(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        tiles: LinearTiles,
        *,
        norm: RMSNorm | None = None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        is_gated: bool = False,
    ) -> None:
        from ostinato.engine.layers.triton.vector_linear import launch_vector

        assert weight.is_contiguous() and out.is_contiguous(), "kernels know no strides"
        launch_vector(
            x.contiguous(),
            weight,
            out,
            tiles=tiles,
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            bias=bias,
            residual=residual,
            is_gated=is_gated,
            use_pdl=self._launches_early(x),
        )

    def _launch_rows(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        tiles: LinearTiles,
        *,
        bias: Tensor | None,
        is_gated: bool = False,
    ) -> None:
        from ostinato.engine.layers.triton.matrix_linear import launch_matrix

        assert weight.is_contiguous() and out.is_contiguous(), "kernels know no strides"
        is_early = self._launches_early(x)
        launch_matrix(x.contiguous(), weight, out, tiles=tiles, bias=bias, is_gated=is_gated, use_pdl=is_early)

    def _launches_early(self, x: Tensor) -> bool:
        from ostinato.engine.kernels.programmatic_launch import can_launch_early

        return self.use_pdl and can_launch_early(x.device)


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
