"""Qwen 2 and 2.5: biased query, key and value projections; the sliding window is optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.engine.models.traits import FamilyTraits

__all__ = ["qwen2_traits"]


def qwen2_traits(hf: Mapping[str, Any]) -> FamilyTraits:
    """Read the switches from a ``config.json``."""
    window = hf.get("sliding_window") if hf.get("use_sliding_window", False) else None
    return FamilyTraits(has_qkv_bias=True, sliding_window=window)
