"""The building blocks of decoders. Each op picks its kernel by device: Triton on CUDA, plain torch elsewhere."""

from ostinato.engine.layers.attention import SelfAttention
from ostinato.engine.layers.feed import feed_ids
from ostinato.engine.layers.fused_linear import FusedLinears
from ostinato.engine.layers.gather import gather_rows
from ostinato.engine.layers.kernel_choice import takes_one_row_path
from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.mlp import GatedMLP
from ostinato.engine.layers.rms_norm import RMSNorm
from ostinato.engine.layers.rotary import RopeConfig, RotaryTable
from ostinato.engine.layers.sampling_head import SamplingHead

__all__ = [
    "FusedLinears",
    "GatedMLP",
    "Linear",
    "RMSNorm",
    "RopeConfig",
    "RotaryTable",
    "SamplingHead",
    "SelfAttention",
    "feed_ids",
    "gather_rows",
    "takes_one_row_path",
]
