"""Row order of q and k: converted weights with half-rotation RoPE give the scores of the GGUF's own."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.engine.weights.gguf_import.tensors import restore_row_order

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, THETA = 4, 2, 16, 32, 10000.0
CONFIG = {"model_type": "llama", "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}


def angles(position: int) -> np.ndarray:
    return position * THETA ** (-np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)


def rotate_neighbours(x: np.ndarray, position: int) -> np.ndarray:
    """RoPE as llama.cpp computes it for the llama family: pairs (0, 1), (2, 3)... x: [heads, head_dim]."""
    z = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles(position))
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def rotate_halves(x: np.ndarray, position: int) -> np.ndarray:
    """RoPE as Hugging Face models compute it: pairs (i, i + head_dim / 2)."""
    half = HEAD_DIM // 2
    z = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles(position))
    return np.concatenate([z.real, z.imag], axis=-1)


@pytest.mark.parametrize("with_bias", [False, True])
def test_attention_scores_are_the_same(with_bias: bool) -> None:
    rng = np.random.default_rng(1)
    wq, wk = rng.standard_normal((HEADS * HEAD_DIM, HIDDEN)), rng.standard_normal((KV_HEADS * HEAD_DIM, HIDDEN))
    bq, bk = (rng.standard_normal(w.shape[0]) * with_bias for w in (wq, wk))
    x, y = rng.standard_normal(HIDDEN), rng.standard_normal(HIDDEN)

    def scores(wq, bq, wk, bk, rotate) -> np.ndarray:
        q = rotate((wq @ x + bq).reshape(HEADS, HEAD_DIM), 7)
        k = rotate((wk @ y + bk).reshape(KV_HEADS, HEAD_DIM), 3)
        return np.einsum("hd,hd->h", q, np.repeat(k, HEADS // KV_HEADS, axis=0))

    stored = scores(wq, bq, wk, bk, rotate_neighbours)
    parts = [
        restore_row_order(f"model.layers.0.self_attn.{name}", values.astype(np.float32), CONFIG).astype(np.float64)
        for name, values in (("q_proj.weight", wq), ("q_proj.bias", bq), ("k_proj.weight", wk), ("k_proj.bias", bk))
    ]
    np.testing.assert_allclose(scores(*parts, rotate_halves), stored, rtol=1e-4)
    assert not np.allclose(scores(wq, bq, wk, bk, rotate_halves), stored, rtol=1e-2)


def test_other_tensors_and_families_pass_through() -> None:
    values = np.arange(64.0, dtype=np.float32).reshape(32, 2)
    assert restore_row_order("model.layers.0.self_attn.v_proj.weight", values, CONFIG) is values
    qwen = {**CONFIG, "model_type": "qwen2"}
    assert restore_row_order("model.layers.0.self_attn.q_proj.weight", values, qwen) is values
