"""From a name to a model: what is refused, in which order, and what "auto" becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import load_model, memory_budget
from ostinato.engine.execution.loading import find_device
from ostinato.engine.text.byte_level import TokenPieces
from ostinato.engine.weights import parallel_copy
from ostinato.errors import (
    CheckpointError,
    ConfigError,
    DeviceUnavailableError,
    ModelNotFoundError,
    OutOfMemoryError,
    UnsupportedArchitectureError,
)
from ostinato.testing.tiny_models import TINY_FAMILIES, tiny_config, write_tiny_model


def load(folder: Path, **settings: Any) -> Any:
    return load_model(EngineConfig(model=str(folder), **{"device": "cpu", **settings}))


def rewrite_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_family_loads(tiny_dir: Callable[[str], Path], family: str) -> None:
    loaded = load(tiny_dir(family))
    assert loaded.model.config.family == family
    assert (loaded.device, loaded.dtype) == (torch.device("cpu"), torch.float32)
    assert loaded.tokenizer is not None and loaded.tokenizer.vocab_size == loaded.model.config.vocab_size
    assert loaded.config.max_model_len == 512
    assert {"dtype", "attention", "max_model_len"} <= set(loaded.reasons)
    assert not any(p.is_meta or p.requires_grad for p in loaded.model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_asked_for(tiny_dir: Callable[[str], Path], dtype: str) -> None:
    loaded = load(tiny_dir("qwen2"), dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, dtype)}


def test_dummy_weights_need_neither_weights_nor_tokenizer(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, has_weights=False, has_tokenizer=False)
    first, again, other = (load(folder, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    assert first.tokenizer is None
    assert torch.equal(first.model.embedding, again.model.embedding)
    assert not torch.equal(first.model.embedding, other.model.embedding)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_tokenizer_has_the_text_of_all_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_format: str
) -> None:
    """No answer waits for it, with dummy weights either."""
    loaded = load(write_tiny_model(tmp_path, has_weights=load_format == "auto"), load_format=load_format)
    monkeypatch.setattr(TokenPieces, "find", lambda *_: pytest.fail("a token was looked for"))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.detokenizer().push(loaded.tokenizer.encode("so")[0])


def test_a_broken_tokenizer_is_no_missing_one(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, has_weights=False)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="tokenizer"):
        load(folder, load_format="dummy")


def test_real_weights_need_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load(write_tiny_model(tmp_path, has_tokenizer=False))


def test_absent_devices(monkeypatch: pytest.MonkeyPatch, tiny_dir: Callable[[str], Path]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:0", "cuda:7"):
        with pytest.raises(DeviceUnavailableError, match=name):
            load(tiny_dir("llama"), device=name)


def test_an_index_past_the_last_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert find_device("auto") == find_device("cuda") == torch.device("cuda", 1)
    assert find_device("cuda:1") == torch.device("cuda", 1)
    for name in ("cuda:2", "cuda:257", "cuda:999999999"):
        with pytest.raises(DeviceUnavailableError, match=f"there is no device {name}") as caught:
            find_device(name)
        assert "cuda:1" in caught.value.fix


@pytest.mark.parametrize(("visible", "outside"), [(None, "1"), ("", "1"), ("6, 7", "7"), ("6", "1")])
def test_a_device_that_is_not_the_current_one(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, outside: str
) -> None:
    """Kernels would be launched on the other."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(DeviceUnavailableError, match="cuda:1 asked for, and the current device is cuda:0") as caught:
        find_device("cuda:1")
    assert f"CUDA_VISIBLE_DEVICES={outside} " in caught.value.fix and "set_device(1)" in caught.value.fix


def test_the_device_is_looked_at_before_the_model() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.raises(DeviceUnavailableError):
        load_model(EngineConfig(model="./no/such/folder", device="cuda"))


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_unsupported_models(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    for changes in (
        {"architectures": ["GPT2LMHeadModel"]},
        {"hidden_act": "gelu"},
        {"quantization_config": {"bits": 4}},
        {"rope_scaling": {"rope_type": "yarn"}},
    ):
        write_tiny_model(tmp_path)
        rewrite_config(folder, **changes)
        with pytest.raises(UnsupportedArchitectureError):
            load(folder)


def test_too_long_a_context(tiny_dir: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        load(tiny_dir("llama"), max_model_len=513)


def test_corrupt_weights(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", b"\xff" * 64):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load(folder)


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    weight_map = {"model.norm.weight": "model-00001-of-00002.safetensors", "x": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 3}, "missing"),
        ({"num_hidden_layers": 1}, "unexpected"),
        ({"intermediate_size": 200}, "of the wrong shape"),
    ],
)
def test_weights_of_another_model(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = write_tiny_model(tmp_path)
    rewrite_config(folder, **changes)
    with pytest.raises(CheckpointError, match=words):
        load(folder)


def test_weights_that_do_not_fit_are_refused_before_they_are_allocated(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: 1000)
    monkeypatch.setattr("ostinato.engine.execution.loading.iter_safetensors", lambda *_, **__: pytest.fail("was read"))
    with pytest.raises(OutOfMemoryError, match="the weights need"):
        load(tiny_dir("llama"))


def test_weights_that_the_allocator_refuses(tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(parallel_copy, "_copy_on_host", fails)
    with pytest.raises(OutOfMemoryError, match="do not fit") as caught:
        load(tiny_dir("llama"))
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_the_tiny_config_is_what_was_read(tiny_dir: Callable[[str], Path]) -> None:
    assert json.loads((tiny_dir("qwen3") / "config.json").read_text()) == tiny_config("qwen3")
