"""The gated feed-forward block: SiLU(gate) * up, then down (Shazeer, "GLU Variants Improve Transformer", 2020)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import silu

from ostinato.engine.layers.kernel_choice import takes_triton
from ostinato.engine.layers.linear import Linear

__all__ = ["GatedMLP", "silu_mul"]


@cache
def _launch() -> Callable[..., Tensor]:
    """See `rms_norm._launch`."""
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    return launch_silu_mul


def silu_mul(gate_up: Tensor, *, is_in_place: bool = False) -> Tensor:
    """SiLU of the first half times the second: [num_tokens, 2 * size] -> [num_tokens, size].

    Args:
        gate_up: contiguous.
        is_in_place: write it over the first half and give that, a view whose rows are 2 * size apart. Not while a
            compiler traces: it places values itself, and would copy the whole to imitate a write into a part.
    """
    if takes_triton(gate_up):
        return _launch()(gate_up, is_in_place=is_in_place)
    gate, up = gate_up.chunk(2, dim=-1)
    if is_in_place and not is_compiling():
        return silu(gate, inplace=True).mul_(up)
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
