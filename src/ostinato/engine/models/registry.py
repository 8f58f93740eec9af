"""Model families by the architecture that a ``config.json`` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ostinato.engine.models.llama import llama_traits
from ostinato.engine.models.mistral import mistral_traits
from ostinato.engine.models.qwen2 import qwen2_traits
from ostinato.engine.models.qwen3 import qwen3_traits
from ostinato.engine.models.traits import FamilyTraits
from ostinato.errors import UnsupportedArchitectureError

__all__ = ["FAMILIES", "family_of"]

FAMILIES: dict[str, Callable[[Mapping[str, Any]], FamilyTraits]] = {
    "llama": llama_traits,
    "mistral": mistral_traits,
    "qwen2": qwen2_traits,
    "qwen3": qwen3_traits,
}
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def family_of(hf: Mapping[str, Any]) -> str:
    """The family of a ``config.json``, by its first architecture or else its model type.

    Raises:
        UnsupportedArchitectureError: the engine does not have it.
    """
    architecture = (hf.get("architectures") or [None])[0]
    family = _ARCHITECTURES.get(architecture) if architecture else hf.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedArchitectureError(
            f"the engine has no model family for {architecture or hf.get('model_type')!r}",
            fix=f"use a model of one of these architectures: {', '.join(_ARCHITECTURES)}",
        )
    return str(family)
