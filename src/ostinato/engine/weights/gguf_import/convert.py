"""Write the folder that a GGUF file describes.

The order of work: header, config, tokenizer, then the weights in shards, so that an unsupported file
fails before the long part. Called by the sources of `resolve`, which publish the folder in the cache.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostinato.engine.text.optional_import import require
from ostinato.engine.weights.gguf_import.config import hf_config
from ostinato.engine.weights.gguf_import.reader import GgufFile, GgufTensor, read_gguf
from ostinato.engine.weights.gguf_import.tensors import hf_name, restore_row_order, stored_dtype, to_tensor
from ostinato.engine.weights.gguf_import.tokenizer import build_tokenizer, generation_config, tokenizer_config
from ostinato.engine.weights.progress import ProgressReporter, reporting
from ostinato.engine.weights.tensor_files import INDEX_FILE, SINGLE_FILE
from ostinato.errors import CheckpointError, UnwritableCacheError

MAX_SHARD_BYTES = 2_000_000_000  # bounds the memory that a conversion takes
_EMBEDDING = "token_embd.weight"


def convert_gguf(
    source: Path, target: Path, *, progress: ProgressReporter | None = None, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Convert ``source`` into the new folder ``target``.

    Raises:
        CheckpointError: the file is truncated, corrupt or incomplete.
        UnsupportedArchitectureError: a family, feature or tokenizer that is not supported.
        EngineError: the ``gguf`` library is not installed.
        UnwritableCacheError: the target cannot be written.
    """
    gguf = read_gguf(source)
    if _EMBEDDING not in gguf.tensors:
        raise CheckpointError(f"{source} has no {_EMBEDDING}", fix="give the first file of a split GGUF, merged")
    config = hf_config(gguf.metadata, gguf.tensors, num_token_rows=gguf.tensors[_EMBEDDING].shape[0])
    config["torch_dtype"] = _compute_dtype(gguf.tensors[_EMBEDDING])
    tokenizer = build_tokenizer(gguf.metadata)
    target.mkdir(parents=True)
    _write_json(target / "config.json", config)
    _write_json(target / "tokenizer_config.json", tokenizer_config(gguf.metadata))
    _write_json(target / "generation_config.json", generation_config(gguf.metadata))
    tokenizer.save(str(target / "tokenizer.json"))
    with reporting(progress, f"converting {source.name}", len(gguf.tensors), "tensors") as reporter:
        _write_weights(gguf, target, config, reporter, max_shard_bytes)


def _compute_dtype(embedding: GgufTensor) -> str:
    """The dtype to compute in by default: the stored one, and bfloat16 for quantised files.

    A quantised file does not say what the model was trained in; bfloat16 has the range of whatever it was.
    """
    return {"F32": "float32", "F16": "float16"}.get(embedding.type_name, "bfloat16")


def _write_weights(
    gguf: GgufFile, target: Path, config: dict[str, Any], reporter: ProgressReporter, max_shard_bytes: int
) -> None:
    shards = _plan_shards(list(gguf.tensors.values()), max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = SINGLE_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        content: dict[str, Tensor] = {}
        for stored in shard:
            name = hf_name(stored.name)
            values = restore_row_order(name, stored.dequantize(), config)
            content[name] = to_tensor(values, stored.type_name)
            weight_map[name] = file_name
            reporter.advance(1)
        _save(content, target / file_name)
    if len(shards) > 1:
        _write_json(target / INDEX_FILE, {"metadata": {}, "weight_map": weight_map})


def _plan_shards(tensors: list[GgufTensor], max_shard_bytes: int) -> list[list[GgufTensor]]:
    """Group tensors, in file order, into shards of at most ``max_shard_bytes`` (or of one tensor)."""
    shards: list[list[GgufTensor]] = [[]]
    size = 0
    for tensor in tensors:
        own = torch.Size(tensor.shape).numel() * stored_dtype(tensor.type_name).itemsize
        if shards[-1] and size + own > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += own
    return shards


def _save(content: dict[str, Tensor], file: Path) -> None:
    safetensors = require("safetensors.torch", "write converted weights")
    error_class = require("safetensors", "write converted weights").SafetensorError
    try:
        safetensors.save_file(content, str(file), metadata={"format": "pt"})
        file.chmod(0o644)  # the library makes it private; a shared cache must be readable
    except error_class as error:  # the library wraps a full disk in its own class
        raise UnwritableCacheError(
            f"cannot write {file}: {error}",
            fix="free some space or set OSTINATO_CACHE to a folder that you can write",
        ) from error


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
