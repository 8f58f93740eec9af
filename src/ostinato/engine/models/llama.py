"""Llama 2 and 3, and models of the same shape such as SmolLM2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.engine.models.traits import FamilyTraits

__all__ = ["llama_traits"]


def llama_traits(hf: Mapping[str, Any]) -> FamilyTraits:
    """Read the switches from a ``config.json``."""
    has_bias = bool(hf.get("attention_bias", False))
    return FamilyTraits(has_qkv_bias=has_bias, has_out_bias=has_bias, has_mlp_bias=bool(hf.get("mlp_bias", False)))
