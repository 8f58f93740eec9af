"""The tiny checkpoints: what their files hold, that other readers agree, and that their weights matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ostinato import LLM, SamplingParams
from ostinato.engine.models import ModelConfig, build_model
from ostinato.engine.text import Tokenizer
from ostinato.engine.weights import iter_safetensors
from ostinato.errors import UnknownNameError
from ostinato.testing.tiny_models import TINY_FAMILIES, tiny_config, write_tiny_model
from ostinato.testing.tiny_tokenizer import TINY_EOS_ID, TINY_VOCAB_SIZE


def test_families() -> None:
    assert TINY_FAMILIES == ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_the_folder(tmp_path: Path, family: str) -> None:
    folder = write_tiny_model(tmp_path / "made" / "here", family)
    assert folder == tmp_path / "made" / "here"
    names = {file.name for file in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5_000_000
    assert json.loads((folder / "config.json").read_text()) == tiny_config(family)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_the_weights_fill_the_model_that_the_config_describes(tmp_path: Path, family: str) -> None:
    folder = write_tiny_model(tmp_path, family)
    config = ModelConfig.from_hf(tiny_config(family))
    assert config.family == family and config.head_dim == 32
    model = build_model(config, device="cpu", dtype=torch.float32)
    for parameter in model.parameters():
        parameter.fill_(float("nan"))
    model.load_weights(iter_safetensors(folder))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_safetensors_library_reads_the_same(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    library = load_file(folder / "model.safetensors")
    assert library["model.embed_tokens.weight"].shape == (TINY_VOCAB_SIZE, 128)
    for name, tensor in iter_safetensors(folder):
        assert tensor.dtype == torch.float32 and torch.equal(library.pop(name), tensor)
    assert library == {}
    head = (folder / "model.safetensors").read_bytes()[:8]
    assert int.from_bytes(head, "little") % 8 == 0, "the data is not aligned"


def test_seeds(tmp_path: Path) -> None:
    files = [write_tiny_model(tmp_path / str(i), seed=seed) / "model.safetensors" for i, seed in enumerate((0, 0, 1))]
    first, again, other = (file.read_bytes() for file in files)
    assert first == again != other


@pytest.mark.parametrize(("has_weights", "has_tokenizer"), [(False, True), (True, False), (False, False)])
def test_parts_may_be_left_out(tmp_path: Path, has_weights: bool, has_tokenizer: bool) -> None:
    folder = write_tiny_model(tmp_path, has_weights=has_weights, has_tokenizer=has_tokenizer)
    assert (folder / "model.safetensors").exists() is has_weights
    assert (folder / "tokenizer.json").exists() is (folder / "tokenizer_config.json").exists() is has_tokenizer


def test_configs_are_the_callers_own() -> None:
    tiny_config()["vocab_size"] = 1
    assert tiny_config()["vocab_size"] == TINY_VOCAB_SIZE


def test_unknown_families_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for make in (tiny_config, lambda family: write_tiny_model(tmp_path / "x", family)):
        with pytest.raises(UnknownNameError, match="gemma"):
            make("gemma")
    with pytest.raises(UnknownNameError, match="did you mean 'llama'"):
        tiny_config("lama")
    assert not (tmp_path / "x").exists()


def test_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(write_tiny_model(tmp_path))
    assert tokenizer.vocab_size == TINY_VOCAB_SIZE and tokenizer.eos_token_ids == {TINY_EOS_ID}
    text = "the thing, and é😀\x00 一\n\t"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and len(ids) < len(text.encode()), "merges shorten a text"
    for byte in range(256):
        assert tokenizer.decode([byte], skip_special=False) == bytes([byte]).decode(errors="replace")
    chat = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(chat) == "user\nhi\nassistant\n" and TINY_EOS_ID in chat


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_each_token_depends_on_the_whole_context(tmp_path: Path, family: str) -> None:
    """Else an equivalence test would compare nothing: change the first of 40 tokens, get another answer."""
    settings = {"device": "cpu", "mode": "none", "max_model_len": 64, "kv_tokens": 256}
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    with LLM(str(write_tiny_model(tmp_path, family)), **settings) as llm:
        rest = list(range(100, 139))
        found = [llm.generate([[first, *rest]], params)[0].token_ids for first in (1, 2, 3)]
    assert len({tuple(tokens) for tokens in found}) == 3
    assert all(len(set(tokens)) > 4 for tokens in found), "the model repeats itself"


def test_neither_tokenizers_nor_safetensors_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update({'tokenizers': None, 'safetensors': None})\n"
        f"from ostinato.testing.tiny_models import write_tiny_model; write_tiny_model({str(tmp_path)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "tokenizer.json").exists()
