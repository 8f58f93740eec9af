"""RMS norm, alone or with the residual addition before it (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from ostinato.engine.layers.kernel_choice import takes_triton

__all__ = ["RMSNorm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last axis, computed in float32, in plain torch."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight).to(x.dtype)


@cache
def _launch() -> Callable[[Tensor, Tensor | None, Tensor, float], Tensor]:
    """Imported once: an import takes a fifth of the launch, whatever is there already."""
    from ostinato.engine.layers.triton.rms_norm import launch_rms_norm

    return launch_rms_norm


class RMSNorm(nn.Module):
    """Norm over the last axis, ``size`` wide."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    @property
    def scale(self) -> Tensor:
        """The weight; see `Linear.tensors`."""
        return self._parameters["weight"]  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape."""
        if takes_triton(x):
            return _launch()(x, None, self.scale, self.eps)
        return rms_norm(x, self.scale, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add ``x`` to the residual stream and norm the sum: (normed, new residual), both [num_tokens, size].

        On CUDA the sum is written into ``residual``'s memory, and the norm may lie in that of ``x``; go on with what is
        returned.

        Args:
            x: [num_tokens, size], or parts of it: see `FusedLinears.split_linear`.
            residual: [num_tokens, size].
        """
        if takes_triton(x):
            return _launch()(x, residual, self.scale, self.eps), residual
        if x.ndim > residual.ndim:
            x = x.sum(0)
        residual = (x + residual).to(residual.dtype)
        return rms_norm(residual, self.scale, self.eps), residual
