"""Tiny GGUF files and checkpoint folders, and a reporter that records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers

try:
    import gguf
except ModuleNotFoundError:  # an interpreter for `make test-gpu` alone: no test here needs a GPU
    collect_ignore_glob = ["test_*.py"]

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 64, 2, 4, 2, 16, 96
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their GGUF types and merges of a byte-level BPE with control tokens in front."""
    merges = ["h e", "l l", "he ll", "1 2", "Ġ w"]
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    return tokens, [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)), merges


def tiny_tensors(*, biases: bool = False, head: bool = False, qk_norm: bool = False) -> dict[str, np.ndarray]:
    """Random float32 tensors under GGUF names."""
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    num_tokens = len(tiny_vocabulary()[0])
    tensors = {"token_embd.weight": matrix(num_tokens, HIDDEN), "output_norm.weight": matrix(HIDDEN)}
    if head:
        tensors["output.weight"] = matrix(num_tokens, HIDDEN)
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        for projection, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS), ("attn_v", KV_HEADS)):
            tensors[f"{name}{projection}.weight"] = matrix(heads * HEAD_DIM, HIDDEN)
            if biases:
                tensors[f"{name}{projection}.bias"] = matrix(heads * HEAD_DIM)
        tensors[f"{name}attn_output.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        tensors[f"{name}ffn_gate.weight"] = matrix(MLP, HIDDEN)
        tensors[f"{name}ffn_up.weight"] = matrix(MLP, HIDDEN)
        tensors[f"{name}ffn_down.weight"] = matrix(HIDDEN, MLP)
        tensors[f"{name}attn_norm.weight"] = matrix(HIDDEN)
        tensors[f"{name}ffn_norm.weight"] = matrix(HIDDEN)
        if qk_norm:
            tensors[f"{name}attn_q_norm.weight"] = matrix(HEAD_DIM)
            tensors[f"{name}attn_k_norm.weight"] = matrix(HEAD_DIM)
    return tensors


def write_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    arch: str = "llama",
    matrix_type: str = "F32",
    pre: str = "smollm",
    tokenizer_model: str = "gpt2",
    extra: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write a GGUF file; matrices in ``matrix_type``, vectors in float32 as llama.cpp does."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    tokens, types, merges = tiny_vocabulary()
    writer.add_tokenizer_model(tokenizer_model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    if extra is not None:
        extra(writer)
    kind = gguf.GGMLQuantizationType[matrix_type]
    for name, values in tensors.items():
        if values.ndim == 1 or matrix_type == "F32":
            writer.add_tensor(name, values)
        elif matrix_type == "F16":
            writer.add_tensor(name, values.astype(np.float16))
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class RecordingProgress:
    """Remembers each piece of work as [label, total, done, is_finished]."""

    def __init__(self) -> None:
        self.works: list[list[Any]] = []

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.works.append([label, total, 0, False])

    def advance(self, n: int) -> None:
        assert n >= 0
        self.works[-1][2] += n

    def finish(self) -> None:
        self.works[-1][3] = True


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """``make_gguf(tensors=None, name="tiny.gguf", **write_gguf's keywords)``."""

    def make(tensors: Mapping[str, np.ndarray] | None = None, name: str = "tiny.gguf", **options: Any) -> Path:
        return write_gguf(tmp_path / name, tiny_tensors() if tensors is None else tensors, **options)

    return make


@pytest.fixture
def make_tensors() -> Callable[..., dict[str, np.ndarray]]:
    return tiny_tensors


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a config.json and, by default, one small safetensors file."""

    def make(name: str = "checkpoint", *, weights: bool = True, **config: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}), encoding="utf-8")
        if weights:
            save_file({"a": torch.arange(6.0).reshape(2, 3)}, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the network or the user's cache unless it says so itself."""
    monkeypatch.setenv("OSTINATO_OFFLINE", "1")
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
