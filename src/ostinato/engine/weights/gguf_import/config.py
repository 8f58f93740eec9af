"""GGUF metadata to a Hugging Face style config.json.

Called by the converter. Refuses what would come out wrong (experts, scaled RoPE stored as factors)
rather than drop it. Key names: the GGUF specification in the ggml repository.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Any

from ostinato.errors import CheckpointError, UnsupportedArchitectureError

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOKEN_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def hf_config(metadata: Mapping[str, Any], tensors: Collection[str], *, num_token_rows: int) -> dict[str, Any]:
    """Build the content of config.json.

    Args:
        metadata: of the GGUF file.
        tensors: GGUF names of its tensors; a file without ``output.weight`` ties its head to the embedding.
        num_token_rows: rows of the token embedding, the vocabulary size that counts.

    Raises:
        UnsupportedArchitectureError: a family or feature that the engine does not have.
        CheckpointError: a required key is missing.
    """
    arch = str(metadata.get("general.architecture"))
    _refuse_unsupported(arch, metadata, tensors)

    def need(key: str) -> Any:
        full = f"{arch}.{key}"
        if full not in metadata:
            raise CheckpointError(f"the GGUF metadata has no {full!r}", fix="take another GGUF file of this model")
        return metadata[full]

    def optional(key: str, default: Any) -> Any:
        return metadata.get(f"{arch}.{key}", default)

    hidden_size = int(need("embedding_length"))
    num_heads = int(need("attention.head_count"))
    config: dict[str, Any] = {
        "architectures": [_CLASSES[arch]],
        "model_type": arch,
        "vocab_size": num_token_rows,
        "hidden_size": hidden_size,
        "intermediate_size": int(need("feed_forward_length")),
        "num_hidden_layers": int(need("block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(optional("attention.head_count_kv", num_heads)),
        "head_dim": int(optional("attention.key_length", hidden_size // num_heads)),
        "hidden_act": "silu",
        "max_position_embeddings": int(need("context_length")),
        "rms_norm_eps": _shortest(need("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(optional("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(arch, metadata),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    for key, role in _TOKEN_IDS.items():
        value = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if value is not None:
            config[key] = int(value)
    return config


def _refuse_unsupported(arch: str, metadata: Mapping[str, Any], tensors: Collection[str]) -> None:
    if arch not in _CLASSES:
        raise UnsupportedArchitectureError(
            f"GGUF files of architecture {arch!r} cannot be converted",
            fix=f"use the safetensors checkpoint, or one of: {', '.join(sorted(_CLASSES))}",
        )
    if int(metadata.get(f"{arch}.expert_count", 0)) > 0:
        raise UnsupportedArchitectureError(
            "this GGUF file has expert layers, which cannot be converted", fix="use the safetensors checkpoint"
        )
    if "rope_freqs.weight" in tensors:
        # Only the finished factors are stored; the scaling's parameters cannot be told from them.
        raise UnsupportedArchitectureError(
            "this GGUF file stores scaled RoPE frequencies, which cannot be converted",
            fix="use the safetensors checkpoint, whose config.json states the scaling",
        )


def _rope_scaling(arch: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = metadata.get(f"{arch}.rope.scaling.type", "none")
    factor = metadata.get(f"{arch}.rope.scaling.factor")
    if kind == "none" or factor is None or float(factor) == 1.0:
        return None
    if kind != "linear":
        raise UnsupportedArchitectureError(
            f"this GGUF file scales RoPE by {kind!r}, which cannot be converted",
            fix="use the safetensors checkpoint, whose config.json states the scaling",
        )
    return {"rope_type": "linear", "factor": _shortest(factor)}


def _shortest(value: Any) -> float:
    """The shortest decimal with the same float32 value: GGUF stores 1e-05 as 9.999999747378752e-06."""
    exact = float(value)
    for digits in range(1, 10):
        candidate = float(f"{exact:.{digits}g}")
        if struct.pack("<f", candidate) == struct.pack("<f", exact):
            return candidate
    return exact
