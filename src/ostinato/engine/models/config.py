"""The facts of a model that the engine needs, read from a Hugging Face ``config.json``. No tensors here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostinato.engine.layers import RopeConfig
from ostinato.engine.models.registry import FAMILIES, family_of
from ostinato.engine.models.rope import read_rope
from ostinato.engine.models.traits import FamilyTraits
from ostinato.errors import CheckpointError, UnsupportedArchitectureError

__all__ = ["ModelConfig"]

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One decoder."""

    family: str
    """"llama", "mistral", "qwen2" or "qwen3"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    max_model_len: int
    """Longest context in tokens: that of the position embedding, or the sliding window if it is shorter."""
    has_tied_head: bool
    """The output projection is the embedding."""
    traits: FamilyTraits

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's projections, each of which a token is multiplied by."""
        attention = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return self.hidden_size * (attention + 3 * self.intermediate_size)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> ModelConfig:
        """Read a ``config.json``.

        Raises:
            UnsupportedArchitectureError: a family, activation, quantisation or head size the engine lacks.
            CheckpointError: a value is missing or contradicts another.
        """
        family = family_of(hf)
        missing = [name for name in _REQUIRED if hf.get(name) is None]
        if missing:
            raise CheckpointError(
                f"config.json lacks {', '.join(missing)}", fix="restore it from where the model comes from"
            )
        _check_counts(hf)
        activation = hf.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise UnsupportedArchitectureError(f"the engine has no activation {activation!r}", fix="use a SiLU model")
        if hf.get("quantization_config"):
            raise UnsupportedArchitectureError(
                "the engine does not read quantised checkpoints", fix="use the unquantised weights of this model"
            )
        traits = FAMILIES[family](hf)
        num_heads = int(hf["num_attention_heads"])
        num_kv_heads = int(hf.get("num_key_value_heads") or num_heads)
        head_dim = int(hf.get("head_dim") or int(hf["hidden_size"]) // num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"config.json has {num_heads} query heads, which {num_kv_heads} key heads do not divide",
                fix="restore it from where the model comes from",
            )
        if head_dim % 2:
            raise UnsupportedArchitectureError(
                f"heads of {head_dim} elements cannot be rotated", fix="use another model"
            )
        max_len = int(hf.get("max_position_embeddings") or 2048)
        return cls(
            family=family,
            vocab_size=int(hf["vocab_size"]),
            hidden_size=int(hf["hidden_size"]),
            intermediate_size=int(hf["intermediate_size"]),
            num_layers=int(hf["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            norm_eps=float(hf.get("rms_norm_eps", 1e-6)),
            rope=read_rope(hf),
            max_model_len=min(max_len, traits.sliding_window or max_len),
            has_tied_head=bool(hf.get("tie_word_embeddings", False)),
            traits=traits,
        )


def _check_counts(hf: Mapping[str, Any]) -> None:
    for name in (*_REQUIRED, "num_key_value_heads", "head_dim", "max_position_embeddings"):
        value = hf.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise CheckpointError(
                f"config.json gives {name} as {value!r}, which is no positive integer",
                fix="restore it from where the model comes from",
            )
