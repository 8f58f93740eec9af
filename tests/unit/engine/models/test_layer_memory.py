"""What one layer holds at once, by the life of its storages on a device without memory: it must not grow unnoticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ostinato.engine.layers import attention
from ostinato.engine.models import ModelConfig
from ostinato.engine.models.decoder_layer import DecoderLayer
from ostinato.engine.models.footprint import footprint_of

HIDDEN, INNER, ROWS, FLOAT = 64, 256, 200, 4
HF = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


class Live(TorchDispatchMode):
    """Bytes of the storages that ops have made and somebody still holds; ``peak`` is the most after any op."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.made = {address: made for address, made in self.made.items() if not made[0].expired()}
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage()
            self.made.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, sum(num_bytes for _, num_bytes in self.made.values()))
        return out


@pytest.mark.parametrize("has_addend", [False, True])
def test_a_layer_holds_its_stream_and_the_mlp_at_most(monkeypatch: pytest.MonkeyPatch, has_addend: bool) -> None:
    """Neither the input of an earlier product nor a second buffer for the gated values lives through the MLP."""
    monkeypatch.setattr(attention, "rotary_paged_attention", lambda *args: None)
    config = ModelConfig.from_hf(HF)
    with torch.device("meta"), torch.inference_mode():
        layer = DecoderLayer(config, 0)
        layer.attention.fuses_rotary = True
        rotary = torch.empty(ROWS, config.head_dim)
        with Live() as live:  # the caller holds what it gives
            addend, residual = torch.empty(ROWS, HIDDEN) if has_addend else None, torch.empty(ROWS, HIDDEN)
            layer(addend, residual, rotary)
    mlp = {term.name: term.num_bytes for term in footprint_of(config, element_bytes=FLOAT).token}["MLP, a token"]
    # Beside it what the caller holds, the stream, which torch's norms do not write in place, and what is normed of it
    # (until down) or what down makes.
    streams = (2 if has_addend else 1) + 2
    assert live.peak == ROWS * (mlp + streams * HIDDEN * FLOAT)
