"""Tiny random checkpoints of every family, made in well under a second, for tests of any engine code.

A folder in Hugging Face layout: config.json, float32 ``model.safetensors`` and a byte-level tokenizer. What
such a model says means nothing, but each token depends on the whole context. Files are written by hand, so
no tokenizer or safetensors library is needed here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ostinato.errors import UnknownNameError
from ostinato.testing.tiny_tokenizer import TINY_EOS_ID, TINY_VOCAB_SIZE, write_tiny_tokenizer

__all__ = ["TINY_FAMILIES", "tiny_config", "write_tiny_model"]

_BASE: Final[dict[str, Any]] = {
    "vocab_size": TINY_VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that every attention backend has
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": TINY_EOS_ID,
    "torch_dtype": "float32",
}
# What sets the families apart, and some variety besides: group sizes, tied heads, hidden sizes.
_FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False},
    "mistral": {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 1, "sliding_window": None},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True, "use_sliding_window": False},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 96, "attention_bias": False},
}

TINY_FAMILIES: Final = tuple(_FAMILIES)
"""The names that `tiny_config` and `write_tiny_model` take."""


def tiny_config(family: str = "llama") -> dict[str, Any]:
    """A ``config.json`` of ``family``, as a new dict: two layers, 272 tokens, a context of 512.

    Raises:
        UnknownNameError: no such family.
    """
    if family not in _FAMILIES:
        raise UnknownNameError.of("model family", family, list(_FAMILIES))
    return {"model_type": family, **_BASE, **_FAMILIES[family]}


def write_tiny_model(
    directory: str | Path, family: str = "llama", *, seed: int = 0, has_weights: bool = True, has_tokenizer: bool = True
) -> Path:
    """Write a checkpoint folder of less than 5 MB.

    Args:
        directory: made if it is not there.
        family: one of `TINY_FAMILIES`.
        seed: of the weights; the same seed gives the same file.
        has_weights: False leaves them out, as for ``load_format="dummy"``.
        has_tokenizer: False leaves it out: an engine that takes and gives token ids.

    Returns:
        The folder.

    Raises:
        UnknownNameError: no such family.
    """
    config = tiny_config(family)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if has_weights:
        _write_safetensors(folder / "model.safetensors", dict(_tensors(config, seed)))
    if has_tokenizer:
        write_tiny_tokenizer(folder)
    return folder


def _tensors(config: dict[str, Any], seed: int) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, spread: float) -> Tensor:
        return torch.randn(shape, generator=generator) * spread

    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim, is_qwen2 = config["head_dim"], config["model_type"] == "qwen2"
    q_size, kv_size = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    # Wider than training would leave them: attention that is far from uniform, logits that are far apart.
    linears = {
        "self_attn.q_proj": (q_size, hidden, is_qwen2),
        "self_attn.k_proj": (kv_size, hidden, is_qwen2),
        "self_attn.v_proj": (kv_size, hidden, is_qwen2),
        "self_attn.o_proj": (hidden, q_size, False),
        "mlp.gate_proj": (inner, hidden, False),
        "mlp.up_proj": (inner, hidden, False),
        "mlp.down_proj": (hidden, inner, False),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config["model_type"] == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    yield "model.embed_tokens.weight", normal(vocab, hidden, spread=0.3)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, has_bias) in linears.items():
            yield f"{prefix}{name}.weight", normal(rows, columns, spread=2.5 / math.sqrt(columns))
            if has_bias:
                yield f"{prefix}{name}.bias", normal(rows, spread=0.3)
        for name, size in norms.items():
            yield f"{prefix}{name}.weight", 1 + normal(size, spread=0.1)
    yield "model.norm.weight", 1 + normal(hidden, spread=0.1)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", normal(vocab, hidden, spread=0.3)


def _write_safetensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """The format: the header's length in 8 bytes, the header as JSON, the tensors (huggingface/safetensors)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # so that the data is aligned
    with file.open("wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            out.write(tensor.numpy().tobytes())
