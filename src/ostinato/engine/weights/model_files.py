"""A model as files on this machine: its folder, its config, and whether it has weights.

Made by `resolve_model` and handed to model building, loading and the tokenizer. Knows of the config
only what is needed to pick a dtype; the rest is `models`' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.engine.text.json_file import read_json_object
from ostinato.engine.weights.tensor_files import has_tensors, iter_safetensors
from ostinato.errors import CheckpointError

_COMPUTE_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """Where a model lies.

    directory: folder with config.json and, unless dummy, weights and tokenizer.
    config: the content of config.json.
    has_weights: whether the folder holds safetensors.
    source: which source had it: ``"local path"``, ``"cache"``, ``"Hugging Face hub"`` or ``"package index"``.
    """

    directory: Path
    config: dict[str, Any]
    has_weights: bool
    source: str


def open_folder(directory: Path, *, source: str, needs_weights: bool) -> ModelFiles:
    """Read a checkpoint folder.

    Raises:
        CheckpointError: no config.json, or no weights although they are needed.
    """
    file = directory / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{directory} has no config.json", fix="give the folder that holds the model's files")
    config = read_json_object(file)
    has_weights = has_tensors(directory)
    if needs_weights and not has_weights:
        other = sorted(path.name for path in directory.glob("*.bin"))
        raise CheckpointError(
            f"{directory} has a config.json but no safetensors files"
            + (f" (only {', '.join(other)})" if other else ""),
            fix="copy the model's *.safetensors there, or use load_format='dummy' for random weights",
        )
    return ModelFiles(directory=directory, config=config, has_weights=has_weights, source=source)


def checkpoint_dtype(files: ModelFiles) -> str:
    """The dtype the model was made for: ``"float32"``, ``"bfloat16"`` or ``"float16"``.

    What config.json states (``dtype``, ``torch_dtype``, also under ``text_config``), else that of the
    first matrix in the weights. Another dtype (8-bit, say) gives ``"bfloat16"``, which has its range.
    """
    nested = files.config.get("text_config")
    for config in (files.config, nested if isinstance(nested, dict) else {}):
        stated = config.get("dtype") or config.get("torch_dtype")
        if isinstance(stated, str):
            return _known(stated)
    if files.has_weights:
        for _, tensor in iter_safetensors(files.directory):
            if tensor.ndim >= 2:
                return _known(str(tensor.dtype))
    return "bfloat16"


def _known(dtype: str) -> str:
    name = dtype.removeprefix("torch.")
    return name if name in _COMPUTE_DTYPES else "bfloat16"
