"""Qwen 3 (dense): no biases, but an RMS norm on each query and key head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.engine.models.traits import FamilyTraits

__all__ = ["qwen3_traits"]


def qwen3_traits(hf: Mapping[str, Any]) -> FamilyTraits:
    """Read the switches from a ``config.json``."""
    has_bias = bool(hf.get("attention_bias", False))
    window = hf.get("sliding_window") if hf.get("use_sliding_window", False) else None
    return FamilyTraits(has_qkv_bias=has_bias, has_out_bias=has_bias, has_qk_norm=True, sliding_window=window)
