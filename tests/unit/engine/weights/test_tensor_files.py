"""Reading safetensors: single and sharded folders, and every way in which they can be broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ostinato.engine.weights import checkpoint_bytes, checkpoint_id, iter_safetensors, tensor_files
from ostinato.errors import CheckpointError

SHARDS = {
    "model-00001-of-00002.safetensors": {"a": torch.arange(4.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)},
    "model-00002-of-00002.safetensors": {"c": torch.zeros(5, dtype=torch.float16)},
}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    weight_map = {}
    for file, tensors in SHARDS.items():
        save_file(tensors, tmp_path / file)
        weight_map.update(dict.fromkeys(tensors, file))
    write_index(tmp_path, weight_map)
    return tmp_path


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


def read(folder: Path) -> dict[str, torch.Tensor]:
    return dict(iter_safetensors(folder))


def test_a_single_file(tmp_path: Path) -> None:
    tensors = {"x": torch.randn(3, 4), "y": torch.arange(7)}
    save_file(tensors, tmp_path / "model.safetensors")
    out = read(tmp_path)
    assert out.keys() == tensors.keys() and all(torch.equal(out[name], tensors[name]) for name in tensors)
    assert checkpoint_bytes(tmp_path) == (tmp_path / "model.safetensors").stat().st_size


def test_shards_give_every_tensor_once_in_its_dtype(sharded: Path) -> None:
    names = [name for name, _ in iter_safetensors(sharded)]
    assert sorted(names) == ["a", "b", "c"]
    out = read(sharded)
    assert out["b"].dtype == torch.bfloat16 and out["c"].dtype == torch.float16
    assert torch.equal(out["a"], torch.arange(4.0))


def test_tensors_outlive_the_files_being_open(sharded: Path) -> None:
    out = read(sharded)
    for file in SHARDS:
        (sharded / file).unlink()
    assert out["a"].sum().item() == 6.0


def test_a_single_file_of_any_name_is_enough(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "weights.safetensors")
    assert list(read(tmp_path)) == ["x"]


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of its 2 shards: model-00002-of-00002\.safetensors.*Fix: download"):
        read(sharded)


def test_shards_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors\.index\.json"):
        read(sharded)


@pytest.mark.parametrize("keep", [0, 4, 20, -1])
def test_a_truncated_shard_fails_before_the_first_tensor(sharded: Path, keep: int) -> None:
    file = sharded / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is truncated or corrupt.*Fix:"):
        next(iter_safetensors(sharded))


def test_a_corrupt_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((100).to_bytes(8, "little") + b"x" * 200)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        read(tmp_path)


def test_an_index_that_names_an_absent_tensor_fails_first(sharded: Path) -> None:
    write_index(sharded, {"a": "model-00001-of-00002.safetensors", "ghost": "model-00002-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors does not hold: ghost"):
        next(iter_safetensors(sharded))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 5}}'])
def test_a_bad_index_is_named(sharded: Path, content: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        read(sharded)


def test_an_index_cannot_point_outside_its_folder(sharded: Path) -> None:
    write_index(sharded, {"a": "../other.safetensors"})
    with pytest.raises(CheckpointError, match="no file name"):
        read(sharded)


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no safetensors files.*load_format='dummy'"):
        read(tmp_path)


def test_a_tensor_that_cannot_be_read_is_named_with_its_file(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        """A shard whose second tensor is bad."""

        def __init__(self, handle: Any) -> None:
            self._handle = handle

        def __enter__(self) -> Broken:
            self._handle.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            closed.append(self)
            self._handle.__exit__(*error)

        def keys(self) -> list[str]:
            return list(self._handle.keys())

        def get_tensor(self, name: str) -> torch.Tensor:
            if name == "c":
                raise RuntimeError("bad bytes")
            return self._handle.get_tensor(name)

    closed: list[Broken] = []
    opened = tensor_files._open
    monkeypatch.setattr(tensor_files, "_open", lambda file: Broken(opened(file)))
    with pytest.raises(CheckpointError, match=r"cannot read tensor 'c' of .*model-00002-of-00002.*bad bytes.*Fix:"):
        read(sharded)
    assert len(closed) == 2, "nothing stays open"


def test_the_id_tells_files_apart(sharded: Path) -> None:
    before = checkpoint_id(sharded)
    assert checkpoint_id(sharded) == before
    file = sharded / "model-00002-of-00002.safetensors"
    save_file({"c": torch.ones(5, dtype=torch.float16)}, file)
    os.utime(file, ns=(1, 1))
    other = checkpoint_id(sharded)
    assert other != before
    os.utime(file, ns=(1, 2))
    assert checkpoint_id(sharded) not in (before, other)
