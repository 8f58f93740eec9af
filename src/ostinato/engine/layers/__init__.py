"""The building blocks of decoders. Each op picks its kernel by device: Triton on CUDA, plain torch elsewhere."""

from ostinato.engine.layers.attention import SelfAttention
from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.mlp import GatedMLP
from ostinato.engine.layers.rms_norm import RMSNorm
from ostinato.engine.layers.rotary import RopeConfig, RotaryTable

__all__ = ["GatedMLP", "Linear", "RMSNorm", "RopeConfig", "RotaryTable", "SelfAttention"]
