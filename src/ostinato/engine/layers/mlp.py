"""The gated feed-forward block: SiLU(gate) * up, then down (Shazeer, "GLU Variants Improve Transformer", 2020)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from torch import Tensor, nn
from torch.nn.functional import silu

from ostinato.engine.layers.kernel_choice import takes_triton
from ostinato.engine.layers.linear import Linear

__all__ = ["GatedMLP", "silu_mul"]


@cache
def _launch() -> Callable[[Tensor], Tensor]:
    """See `rms_norm._launch`."""
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    return launch_silu_mul


def silu_mul(gate_up: Tensor) -> Tensor:
    """[num_tokens, 2 * size] -> [num_tokens, size]: SiLU of the first half times the second."""
    if takes_triton(gate_up):
        return _launch()(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


class GatedMLP(nn.Module):
    """The weights of a feed-forward block, its gate and up projections merged; `FusedLinears` multiplies by them."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, has_bias: bool) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * intermediate_size, has_bias=has_bias)
        self.down = Linear(intermediate_size, hidden_size, has_bias=has_bias)

    def projections(self) -> tuple[Linear, Linear]:
        """(gate_up, down); see `Linear.tensors`."""
        modules = self._modules
        return modules["gate_up"], modules["down"]  # type: ignore[return-value]
