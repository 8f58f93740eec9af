"""Mistral: a Llama whose first version attends through a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.engine.models.traits import FamilyTraits

__all__ = ["mistral_traits"]


def mistral_traits(hf: Mapping[str, Any]) -> FamilyTraits:
    """Read the switches from a ``config.json``."""
    return FamilyTraits(sliding_window=hf.get("sliding_window"))
