"""Tiny configs of every family, a checkpoint for each, a hand-written decoder, and an engine step in miniature."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from ostinato.engine.attention import (
    AttentionMetadata,
    ForwardContext,
    get_attention_backend,
    set_forward_context,
)
from ostinato.engine.kvcache import allocate_caches
from ostinato.engine.models import DecoderModel, ModelConfig, build_model

BASE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0},
    "llama-scaled": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 500.0,
        "rope_scaling": LLAMA3,
        "tie_word_embeddings": True,
    },
    "llama-linear-biased": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "attention_bias": True,
        "mlp_bias": True,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "rope_theta": 10000.0,
        "head_dim": 16,
        "sliding_window": None,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "rope_theta": 1000000.0,
        "head_dim": 16,
        "attention_bias": False,
    },
}
PAGE_SIZE = 4


def config_of(name: str) -> dict[str, Any]:
    return {**BASE, **CONFIGS[name]}


def checkpoint_of(hf: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors with the names and shapes that Hugging Face gives this config."""
    hidden, inner, vocab = hf["hidden_size"], hf["intermediate_size"], hf["vocab_size"]
    head_dim = hf.get("head_dim") or hidden // hf["num_attention_heads"]
    q_size, kv_size = hf["num_attention_heads"] * head_dim, hf["num_key_value_heads"] * head_dim
    qkv_bias = hf["model_type"] == "qwen2" or hf.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not hf["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer in range(hf["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        linears = {
            "self_attn.q_proj": (q_size, hidden, qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, qkv_bias),
            "self_attn.o_proj": (hidden, q_size, hf.get("attention_bias", False)),
            "mlp.gate_proj": (inner, hidden, hf.get("mlp_bias", False)),
            "mlp.up_proj": (inner, hidden, hf.get("mlp_bias", False)),
            "mlp.down_proj": (hidden, inner, hf.get("mlp_bias", False)),
        }
        for name, (rows, columns, has_bias) in linears.items():
            shapes[f"{p}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{p}{name}.bias"] = (rows,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{p}{name}.weight"] = (hidden,)
        if hf["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                shapes[f"{p}self_attn.{name}.weight"] = (head_dim,)
    generator = torch.Generator().manual_seed(seed)
    spread = 0.3  # large enough that attention is far from uniform
    return {
        name: torch.randn(shape, generator=generator) * spread + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


class ReferenceDecoder:
    """The decoder written down once more, densely, one request at a time, straight from checkpoint names."""

    def __init__(self, hf: dict[str, Any], weights: dict[str, Tensor]) -> None:
        self.hf = hf
        self.weights = {name: tensor.double() for name, tensor in weights.items()}
        self.head_dim = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]

    def logits(self, tokens: list[int]) -> Tensor:
        """[len(tokens), vocab_size]."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.hf["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + self.attention(p + "self_attn.", self.norm(x, p + "input_layernorm"))
            y = self.norm(x, p + "post_attention_layernorm")
            gated = silu(self.linear(y, p + "mlp.gate_proj")) * self.linear(y, p + "mlp.up_proj")
            x = x + self.linear(gated, p + "mlp.down_proj")
        x = self.norm(x, "model.norm")
        return x @ self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"]).T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.hf["rms_norm_eps"]).sqrt() * self.weights[name + ".weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def frequency(self, pair: int) -> float:
        scaling = self.hf.get("rope_scaling") or {}
        frequency = self.hf["rope_theta"] ** (-2 * pair / self.head_dim)
        if scaling.get("rope_type") == "linear":
            return frequency / scaling["factor"]
        if scaling.get("rope_type") == "llama3":
            original, wavelength = scaling["original_max_position_embeddings"], 2 * math.pi / frequency
            if wavelength > original / scaling["low_freq_factor"]:
                return frequency / scaling["factor"]
            if wavelength >= original / scaling["high_freq_factor"]:
                smooth = (original / wavelength - scaling["low_freq_factor"]) / (
                    scaling["high_freq_factor"] - scaling["low_freq_factor"]
                )
                return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
        return frequency

    def rotate(self, x: Tensor) -> Tensor:
        half = self.head_dim // 2
        frequencies = torch.tensor([self.frequency(i) for i in range(half)], dtype=torch.float64)
        angles = torch.arange(x.shape[0], dtype=torch.float64)[:, None, None] * frequencies
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), dim=-1)

    def attention(self, p: str, x: Tensor) -> Tensor:
        length = x.shape[0]
        q, k, v = (self.linear(x, f"{p}{n}_proj").view(length, -1, self.head_dim) for n in "qkv")
        if self.hf["model_type"] == "qwen3":
            q, k = self.norm(q, p + "q_norm"), self.norm(k, p + "k_norm")
        q, k = self.rotate(q), self.rotate(k)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        return self.linear(attended.reshape(length, -1), p + "o_proj")


class MiniEngine:
    """Steps a model over requests with paged caches, as `engine.execution` does, without graphs."""

    def __init__(
        self, model: DecoderModel, *, num_pages: int = 64, backend: str = "torch", device: str = "cpu"
    ) -> None:
        config = model.config
        self.model, self.device = model, device
        self.backend = get_attention_backend(backend, device)
        self.caches = allocate_caches(
            num_layers=config.num_layers,
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=model.embedding.dtype,
            device=device,
        )
        self.free = list(range(num_pages - 1, 0, -1))
        self.pages: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, new: dict[str, list[int]], *, uniform: int | None = None) -> dict[str, Tensor]:
        """Feed each request its new tokens; gives the logits of all of its new rows."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for name, tokens in new.items():
            start = self.lengths.get(name, 0)
            pages = self.pages.setdefault(name, [])
            while len(pages) * PAGE_SIZE < start + len(tokens):
                pages.append(self.free.pop())
            places = range(start, start + len(tokens))
            ids += tokens
            positions += places
            slots += [pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in places]
            self.lengths[name] = start + len(tokens)
        width = max(len(self.pages[name]) for name in new) + 1
        tables = [self.pages[name] + [0] * (width - len(self.pages[name])) for name in new]
        query_lens = [len(tokens) for tokens in new.values()]
        seq_lens = [self.lengths[name] for name in new]

        def ints(values: list[Any], dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        metadata = AttentionMetadata(
            num_tokens=len(ids),
            slot_mapping=ints(slots, torch.int64),
            block_tables=ints(tables),
            seq_lens=ints(seq_lens),
            query_start=ints([0, *query_lens]).cumsum(0).to(torch.int32),
            uniform_query_len=uniform,
            host_query_lens=tuple(query_lens),
            host_seq_lens=tuple(seq_lens),
        )
        context = ForwardContext(metadata, self.caches, self.backend)
        with torch.inference_mode(), set_forward_context(context):
            hidden = self.model(ints(ids, torch.int64), ints(positions, torch.int64))
            logits = self.model.compute_logits(hidden)
        return dict(zip(new, logits.split(query_lens), strict=True))


def load_model(hf: dict[str, Any], weights: dict[str, Tensor]) -> DecoderModel:
    model = build_model(ModelConfig.from_hf(hf), device="cpu", dtype=torch.float32, max_model_len=128)
    model.load_weights(weights.items())
    return model


@pytest.fixture(params=sorted(CONFIGS))
def hf(request) -> dict[str, Any]:
    """The ``config.json`` of a tiny model of each family."""
    return config_of(request.param)


@pytest.fixture
def weights(hf) -> dict[str, Tensor]:
    """A random checkpoint for it."""
    return checkpoint_of(hf)


@pytest.fixture
def make_engine():
    """Builds a `MiniEngine` from a config and a checkpoint."""
    return lambda hf, weights: MiniEngine(load_model(hf, weights))


@pytest.fixture
def make_reference():
    """Builds a `ReferenceDecoder` from a config and a checkpoint."""
    return ReferenceDecoder
