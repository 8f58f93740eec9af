"""The building blocks of decoders. Each op picks its kernel by device: Triton on CUDA, plain torch elsewhere."""

from ostinato.engine.layers.attention import SelfAttention
from ostinato.engine.layers.feed import feed_ids
from ostinato.engine.layers.fused_linear import FusedLinears
from ostinato.engine.layers.greedy_head import GreedyHead
from ostinato.engine.layers.kernel_choice import takes_fused_linears
from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.mlp import GatedMLP
from ostinato.engine.layers.rms_norm import RMSNorm
from ostinato.engine.layers.rotary import RopeConfig, RotaryTable

__all__ = [
    "FusedLinears",
    "GatedMLP",
    "GreedyHead",
    "Linear",
    "RMSNorm",
    "RopeConfig",
    "RotaryTable",
    "SelfAttention",
    "feed_ids",
    "takes_fused_linears",
]
