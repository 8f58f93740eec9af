"""Models that lie on this machine: a checkpoint folder, a config.json, or a GGUF file to convert.

One of the sources of `resolve`. A GGUF file is converted once and kept in the cache.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ostinato.engine.weights.cache import ModelCache
from ostinato.engine.weights.gguf_import import convert_gguf
from ostinato.engine.weights.progress import ProgressReporter
from ostinato.errors import CheckpointError, ModelNotFoundError


def is_path(name: str) -> bool:
    """Whether ``name`` can only be a path, so that no other source needs to be asked."""
    path = Path(name)
    return name.startswith((".", "~")) or path.is_absolute() or path.suffix in (".gguf", ".json") or len(path.parts) > 2


def find(name: str, *, cache: ModelCache, progress: ProgressReporter | None) -> Path:
    """The checkpoint folder of a local path.

    Raises:
        ModelNotFoundError: nothing there.
        CheckpointError: something is there that is no model.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(path, name, cache, progress)
    if path.is_file():
        if path.suffix == ".gguf":
            return _converted(path, cache, progress)
        if path.name == "config.json":
            return path.parent
        raise CheckpointError(
            f"{path} is neither a .gguf file nor a config.json", fix="give the folder that holds the model's files"
        )
    raise ModelNotFoundError(f"nothing at {path}")


def _in_folder(path: Path, name: str, cache: ModelCache, progress: ProgressReporter | None) -> Path:
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _converted(files[0], cache, progress)
    if files:
        raise CheckpointError(
            f"{path} has {len(files)} GGUF files", fix=f"give the path of one of them: {', '.join(map(str, files[:4]))}"
        )
    if is_path(name):
        raise CheckpointError(
            f"{path} has no config.json and no .gguf file", fix="give the folder that holds the model's files"
        )
    # A hub name may happen to be a folder here; the other sources still count.
    raise ModelNotFoundError(f"the folder {path} has no config.json")


def _converted(file: Path, cache: ModelCache, progress: ProgressReporter | None) -> Path:
    """The converted form of a GGUF file, made at the first use.

    Known by path, size and time of change, since hashing a file of many gigabytes at every start would
    cost more than it is worth.
    """
    file = file.resolve()
    state = file.stat()
    digest = hashlib.sha256(f"{file}\0{state.st_size}\0{state.st_mtime_ns}".encode()).hexdigest()[:16]
    name = f"gguf--{file.stem}--{digest}"
    known = cache.find(name)
    if known is not None:
        return known
    with cache.staging() as staging:
        target = staging / "model"
        convert_gguf(file, target, progress=progress)
        return cache.publish(target, name, origin=str(file))
