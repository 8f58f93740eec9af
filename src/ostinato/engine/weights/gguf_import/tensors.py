"""GGUF tensors to Hugging Face tensors: names, row order of q and k, stored dtype.

Called by the converter, one tensor at a time. Pure: reads no files.

llama.cpp interleaves the rows of each q and k head of the llama family for its own RoPE kernel, which
pairs neighbours (0, 1), (2, 3)...; Hugging Face models pair row i with row i + head_dim / 2. The Qwen
families are stored as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ostinato.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_INTERLEAVED_FAMILIES = {"llama"}
_FLOAT16_MAX = 65504.0


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    Raises:
        CheckpointError: the name is not one of the Llama family's.
    """
    layer = _LAYER.fullmatch(name)
    if layer is not None and layer[2] in _IN_LAYER:
        return f"model.layers.{layer[1]}.{_IN_LAYER[layer[2]]}.{layer[3]}"
    part, _, kind = name.rpartition(".")
    if part in _TOP and kind == "weight":
        return f"{_TOP[part]}.{kind}"
    raise CheckpointError(
        f"the GGUF file has a tensor {name!r} that this converter does not know",
        fix="use the model's safetensors checkpoint",
    )


def restore_row_order(name: str, values: NDArray[np.float32], config: dict[str, Any]) -> NDArray[np.float32]:
    """Undo the interleaving of q and k rows where the family has it; other tensors pass through.

    Args:
        name: the tensor's Hugging Face name.
        values: [num_heads * head_dim, hidden_size], or [num_heads * head_dim] for a bias.
        config: as made by `hf_config`.
    """
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None or config["model_type"] not in _INTERLEAVED_FAMILIES:
        return values
    num_heads = int(config[heads])
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def stored_dtype(type_name: str) -> torch.dtype:
    """The dtype that a tensor of this GGUF type is written in.

    F32, F16 and BF16 stay what they are. Quantised values (scale * integer + minimum) are written as
    float16: its 11 bits keep them within 1/2048, far below a quantisation step and 8 times closer than
    bfloat16, at half the size of float32.
    """
    return {"F32": torch.float32, "BF16": torch.bfloat16}.get(type_name, torch.float16)


def to_tensor(values: NDArray[np.float32], type_name: str) -> Tensor:
    """The values as a contiguous tensor of `stored_dtype`; float32 where float16 would overflow."""
    tensor = torch.from_numpy(values).contiguous()
    dtype = stored_dtype(type_name)
    if dtype == torch.float16 and float(tensor.abs().max()) > _FLOAT16_MAX:
        return tensor
    return tensor.to(dtype)
