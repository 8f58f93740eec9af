"""A linear projection whose weight is filled by a checkpoint. Several projections may share one weight, row-wise."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

__all__ = ["Linear"]


class Linear(nn.Module):
    """``x @ weight.T + bias``; uninitialised until weights are loaded.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        has_bias: whether a bias is added.
    """

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, has_bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(out_features), requires_grad=False) if has_bias else None
        )

    def tensors(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias, for a tenth of what torch's look-up of attributes of modules takes, which is Python."""
        parameters = self._parameters
        return parameters["weight"], parameters["bias"]  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features]."""
        return linear(x, *self.tensors())
