"""What sets one family of decoders apart from another. Filled in by the family files, read by `ModelConfig`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FamilyTraits"]


@dataclass(frozen=True, kw_only=True)
class FamilyTraits:
    """The switches of the one decoder."""

    has_qkv_bias: bool = False
    has_out_bias: bool = False
    """Bias of the attention's output projection."""
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    """RMS norm of each query and key head before rotation."""
    sliding_window: int | None = None
    """Tokens that a layer attends back to; None for all. Contexts are capped to it, so that it never bites."""
