"""Linear layers of few rows fused with what surrounds them; each op picks kernel or cuBLAS by shape alone.

For steps of up to 16 rows, whose time is that of reading weights and of launching kernels. The residual
stream is always complete: no addition is left to the next norm. Called by `DecoderLayer` and `DecoderModel`
where `takes_fused_linears` says so.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, LinearTiles, row_bucket
from ostinato.engine.layers.mlp import silu_mul
from ostinato.engine.layers.rms_norm import RMSNorm

__all__ = ["FusedLinears"]


class FusedLinears:
    """The three fused ops. One instance may serve all layers; it holds no tensors.

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
        """``norm(x) @ weight.T + bias``: [num_rows, in_features] -> [num_rows, out_features], in ``out`` if given."""
        tiles = self._tiles(LinearKind.NORM_LINEAR, x, weight.shape[0])
        if tiles is None:
            return linear(norm(x), weight, bias) if out is None else _linear_into(out, norm(x), weight, bias)
        out = x.new_empty((x.shape[0], weight.shape[0])) if out is None else out
        self._launch(x, weight, out, tiles, norm=norm, bias=bias)
        return out

    def linear_add(self, residual: Tensor, x: Tensor, projection: Linear) -> Tensor:
        """``residual + x @ weight.T + bias``, written into ``residual``'s memory: [num_rows, out_features]."""
        tiles = self._tiles(LinearKind.LINEAR_ADD, x, residual.shape[1])
        if tiles is None:
            if projection.bias is not None:
                residual += projection.bias
            return residual.addmm_(x, projection.weight.t())
        self._launch(x, projection.weight, residual, tiles, bias=projection.bias, residual=residual)
        return residual

    def norm_gated_linear(self, x: Tensor, norm: RMSNorm, gate_up: Linear) -> Tensor:
        """``silu(norm(x) @ gate.T) * (norm(x) @ up.T)``, gate and up being the halves of one weight.

        [num_rows, in_features] -> [num_rows, out_features of gate_up / 2].
        """
        columns = gate_up.weight.shape[0] // 2
        tiles = self._tiles(LinearKind.NORM_GATED_LINEAR, x, columns)
        if tiles is None:
            return silu_mul(linear(norm(x), gate_up.weight, gate_up.bias))
        out = x.new_empty((x.shape[0], columns))
        self._launch(x, gate_up.weight, out, tiles, norm=norm, bias=gate_up.bias, is_gated=True)
        return out

    def _tiles(self, kind: LinearKind, x: Tensor, out_features: int) -> LinearTiles | None:
        key = (kind, x.shape[0], out_features, x.shape[1], x.dtype)
        if key not in self._chosen:
            shape = LinearShape(
                kind=kind,
                num_rows=row_bucket(x.shape[0]),
                out_features=out_features,
                in_features=x.shape[1],
                dtype=str(x.dtype).removeprefix("torch."),
            )
            self._chosen[key] = self.table.choose(shape)
        return self._chosen[key]

    def _launch(
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
        from ostinato.engine.attention.triton.programmatic_launch import can_launch_early
        from ostinato.engine.layers.triton.matrix_linear import launch_matrix
        from ostinato.engine.layers.triton.vector_linear import launch_vector

        assert weight.is_contiguous() and out.is_contiguous(), "kernels know no strides"
        launch = launch_matrix if tiles.uses_tensor_cores else launch_vector
        launch(
            x.contiguous(),
            weight,
            out,
            tiles=tiles,
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            bias=bias,
            residual=residual,
            is_gated=is_gated,
            # With more rows an early kernel only takes room from the one before it (measured on an H200).
            use_pdl=self.use_pdl and x.shape[0] == 1 and can_launch_early(x.device),
        )


def _linear_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
