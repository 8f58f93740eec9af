"""Converting whole GGUF files: values, names, dtypes, shards, config, and files that are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from ostinato.engine.text import Tokenizer
from ostinato.engine.weights import iter_safetensors
from ostinato.engine.weights.gguf_import import convert_gguf
from ostinato.errors import CheckpointError, EngineError, UnsupportedArchitectureError

Q_NAME, Q_GGUF = "model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight"


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k: row pair (i, i + half) of a head becomes (2i, 2i + 1)."""
    head_dim = rows.shape[0] // num_heads
    order = [
        h * head_dim + i + half * head_dim // 2
        for h in range(num_heads)
        for i in range(head_dim // 2)
        for half in (0, 1)
    ]
    return rows[order]


def convert(source: Path, tmp_path: Path, **options) -> tuple[dict[str, torch.Tensor], dict]:
    target = tmp_path / "out"
    convert_gguf(source, target, **options)
    return dict(iter_safetensors(target)), json.loads((target / "config.json").read_text())


def test_float32_values_come_back_exactly_under_hf_names(make_gguf, make_tensors, tmp_path) -> None:
    tensors = make_tensors()
    original_q = tensors[Q_GGUF]
    original_k = tensors["blk.0.attn_k.weight"]
    tensors[Q_GGUF] = interleave(original_q, 4)
    tensors["blk.0.attn_k.weight"] = interleave(original_k, 2)
    out, config = convert(make_gguf(tensors), tmp_path)
    assert len(out) == len(tensors)
    pairs = {
        Q_NAME: original_q,
        "model.layers.0.self_attn.k_proj.weight": original_k,
        "model.layers.0.self_attn.v_proj.weight": tensors["blk.0.attn_v.weight"],
        "model.layers.1.mlp.down_proj.weight": tensors["blk.1.ffn_down.weight"],
        "model.layers.1.post_attention_layernorm.weight": tensors["blk.1.ffn_norm.weight"],
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    for name, expected in pairs.items():
        np.testing.assert_array_equal(out[name].numpy(), expected, err_msg=name)
    assert config["torch_dtype"] == "float32"


def test_float16_stays_float16(make_gguf, make_tensors, tmp_path) -> None:
    tensors = make_tensors()
    out, config = convert(make_gguf(tensors, matrix_type="F16"), tmp_path)
    embedding = out["model.embed_tokens.weight"]
    assert embedding.dtype == torch.float16 and config["torch_dtype"] == "float16"
    np.testing.assert_array_equal(embedding.numpy(), tensors["token_embd.weight"].astype(np.float16))
    assert out["model.norm.weight"].dtype == torch.float32


def test_bfloat16_stays_bfloat16(make_gguf, make_tensors, tmp_path) -> None:
    tensors = make_tensors()
    out, config = convert(make_gguf(tensors, matrix_type="BF16"), tmp_path)
    embedding = out["model.embed_tokens.weight"]
    assert embedding.dtype == torch.bfloat16 and config["torch_dtype"] == "bfloat16"
    expected = torch.from_numpy(tensors["token_embd.weight"]).bfloat16()
    torch.testing.assert_close(embedding, expected, rtol=2**-8, atol=0)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantised_values_are_the_dequantised_ones_in_float16(make_gguf, make_tensors, tmp_path, kind: str) -> None:
    tensors = make_tensors()
    original_q = tensors[Q_GGUF]
    tensors[Q_GGUF] = interleave(original_q, 4)
    out, config = convert(make_gguf(tensors, matrix_type=kind), tmp_path)
    qtype = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(original_q, qtype), qtype)  # quantisation goes row by row
    assert out[Q_NAME].dtype == torch.float16 and config["torch_dtype"] == "bfloat16"
    np.testing.assert_allclose(out[Q_NAME].float().numpy(), expected, rtol=2**-11, atol=1e-7)


def test_values_past_float16_are_kept_as_float32(make_gguf, make_tensors, tmp_path) -> None:
    tensors = make_tensors()
    tensors["blk.0.ffn_up.weight"][0, 0] = 1e6
    out, _ = convert(make_gguf(tensors, matrix_type="Q8_0"), tmp_path)
    wide = out["model.layers.0.mlp.up_proj.weight"]
    assert wide.dtype == torch.float32 and wide[0, 0].item() == pytest.approx(1e6, rel=1e-3)


def test_config_has_what_the_metadata_says(make_gguf, make_tensors, tmp_path) -> None:
    _, config = convert(make_gguf(), tmp_path)
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "vocab_size": make_tensors()["token_embd.weight"].shape[0],
    }
    assert {key: config[key] for key in expected} == expected


def test_a_head_of_its_own_is_not_tied(make_gguf, make_tensors, tmp_path) -> None:
    tensors = make_tensors(head=True)
    out, config = convert(make_gguf(tensors), tmp_path)
    assert config["tie_word_embeddings"] is False
    np.testing.assert_array_equal(out["lm_head.weight"].numpy(), tensors["output.weight"])


@pytest.mark.parametrize(("arch", "options"), [("qwen2", {"biases": True}), ("qwen3", {"qk_norm": True})])
def test_qwen_rows_are_left_as_they_are(make_gguf, make_tensors, tmp_path, arch: str, options: dict) -> None:
    tensors = make_tensors(**options)
    out, config = convert(make_gguf(tensors, arch=arch, pre="qwen2"), tmp_path)
    assert config["model_type"] == arch and config["attention_bias"] is (arch == "qwen2")
    np.testing.assert_array_equal(out[Q_NAME].numpy(), tensors[Q_GGUF])
    if arch == "qwen2":
        np.testing.assert_array_equal(out["model.layers.0.self_attn.k_proj.bias"].numpy(), tensors["blk.0.attn_k.bias"])
    else:
        np.testing.assert_array_equal(
            out["model.layers.0.self_attn.k_norm.weight"].numpy(), tensors["blk.0.attn_k_norm.weight"]
        )


def test_linear_rope_scaling_is_taken_over(make_gguf, tmp_path) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    _, config = convert(make_gguf(extra=extra), tmp_path)
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_big_models_are_written_in_shards_with_the_same_values(make_gguf, tmp_path) -> None:
    source = make_gguf()
    whole, _ = convert(source, tmp_path)
    convert_gguf(source, tmp_path / "sharded", max_shard_bytes=100_000)
    names = sorted(path.name for path in (tmp_path / "sharded").glob("*.safetensors"))
    assert len(names) > 1 and names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    sharded = dict(iter_safetensors(tmp_path / "sharded"))
    assert sharded.keys() == whole.keys()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)


def test_progress_counts_every_tensor(make_gguf, make_tensors, tmp_path, progress) -> None:
    convert(make_gguf(), tmp_path, progress=progress)
    num = len(make_tensors())
    assert progress.works == [["converting tiny.gguf", num, num, True]]


def test_the_folder_has_a_working_tokenizer(make_gguf, tmp_path) -> None:
    convert(make_gguf(), tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path / "out")
    assert tokenizer.eos_token_ids == {0, 2} and tokenizer.bos_token_id == 1
    ids = tokenizer.encode_chat([{"role": "user", "content": "hello 123"}])
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "hello 123"


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
def test_a_truncated_file_is_named(make_gguf, tmp_path, keep: float) -> None:
    source = make_gguf()
    content = source.read_bytes()
    source.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf is not a whole GGUF file"):
        convert_gguf(source, tmp_path / "out")


def test_a_file_of_another_kind_is_named(tmp_path) -> None:
    file = tmp_path / "notes.gguf"
    file.write_bytes(b"not a gguf file, but long enough to be read as a header")
    with pytest.raises(CheckpointError, match="magic"):
        convert_gguf(file, tmp_path / "out")


def test_an_unknown_tensor_is_an_error_not_a_gap(make_gguf, make_tensors, tmp_path) -> None:
    tensors = {**make_tensors(), "blk.0.mystery.weight": np.ones(4, np.float32)}
    with pytest.raises(CheckpointError, match=r"blk\.0\.mystery\.weight"):
        convert_gguf(make_gguf(tensors), tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "gemma"}, "'gemma'"),
        ({"pre": "unheard-of"}, "'unheard-of'.*smollm"),
        ({"tokenizer_model": "llama"}, "kind 'llama'"),
        ({"extra": lambda writer: writer.add_expert_count(8)}, "expert"),
        ({"extra": lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))}, "RoPE frequencies"),
    ],
)
def test_what_would_come_out_wrong_is_refused(make_gguf, tmp_path, options, message: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=message):
        convert_gguf(make_gguf(**options), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_yarn_scaling_is_refused(make_gguf, tmp_path) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)

    with pytest.raises(UnsupportedArchitectureError, match="yarn"):
        convert_gguf(make_gguf(extra=extra), tmp_path / "out")


def test_without_the_gguf_library_it_says_what_to_install(make_gguf, tmp_path, monkeypatch) -> None:
    source = make_gguf()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(EngineError, match=r"pip install 'ostinato\[engine\]'"):
        convert_gguf(source, tmp_path / "out")
