"""The tensors of a folder of safetensors files, single or sharded.

All headers are checked before the first tensor comes out, so that a bad download fails in the first
second and names its file. Called by model loading. Leaves names as the checkpoint has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.engine.text.json_file import read_json_object
from ostinato.engine.text.optional_import import require
from ostinato.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_AGAIN = "download or copy this file again"


def has_tensors(directory: Path) -> bool:
    """Whether the folder holds any safetensors file or an index of them (not whether they are whole)."""
    return (directory / INDEX_FILE).is_file() or any(directory.glob("*.safetensors"))


def checkpoint_bytes(directory: str | Path) -> int:
    """Size of the folder's tensor files, in bytes.

    Raises:
        CheckpointError: as `iter_safetensors`.
    """
    return sum(file.stat().st_size for file in _plan(Path(directory)))


def checkpoint_id(directory: str | Path) -> str:
    """Tells the folder's tensor files from others, without reading them: by names, sizes and times of change.

    Raises:
        CheckpointError: as `iter_safetensors`.
    """
    found = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in _plan(Path(directory))]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def iter_safetensors(directory: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every (name, tensor) of a folder. Tensors lie on the CPU, in the stored dtype.

    They are mapped, not read: that comes with their first use (`copy_tensors`), and they outlive the iterator. That
    each file is as long as its header says was seen before; of one that is cut off afterwards, by somebody who writes
    into it instead of replacing it, a missing page ends the process (SIGBUS), which nothing here can catch.

    Args:
        directory: folder with ``model.safetensors``, or shards and ``model.safetensors.index.json``.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt, or the index names a tensor that its
            shard does not hold.
    """
    plan = _plan(Path(directory))
    with ExitStack() as stack:
        opened = [(file, stack.enter_context(_open(file)), wanted) for file, wanted in plan.items()]
        for file, handle, wanted in opened:
            _check_names(file, set(handle.keys()), wanted)
        for file, handle, wanted in opened:
            for name in sorted(handle.keys() if wanted is None else wanted):
                try:
                    tensor: Tensor = handle.get_tensor(name)
                except Exception as error:  # the library has several classes for a bad tensor
                    raise CheckpointError(f"cannot read tensor {name!r} of {file}: {error}", fix=_AGAIN) from error
                yield name, tensor


def _plan(directory: Path) -> dict[Path, set[str] | None]:
    """Which files to read and which tensors of each (None: all). All files are there."""
    single = directory / SINGLE_FILE
    if single.is_file():
        return {single: None}
    index = directory / INDEX_FILE
    if index.is_file():
        return _plan_of_index(index)
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return {files[0]: None}
    if not files:
        raise CheckpointError(
            f"{directory} has no safetensors files",
            fix="copy the model's *.safetensors there, or use load_format='dummy' for random weights",
        )
    raise CheckpointError(
        f"{directory} has {len(files)} safetensors files and no {INDEX_FILE}",
        fix=f"copy the model's {INDEX_FILE} there; it says which tensors are where",
    )


def _plan_of_index(index: Path) -> dict[Path, set[str] | None]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no 'weight_map'", fix=_AGAIN)
    by_file: dict[Path, set[str]] = {}
    for name, file_name in weight_map.items():
        # The index comes from outside: it may only name files of its own folder.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise CheckpointError(f"{index} puts tensor {name!r} in {file_name!r}, which is no file name", fix=_AGAIN)
        by_file.setdefault(index.parent / file_name, set()).add(name)
    missing = sorted(file.name for file in by_file if not file.is_file())
    if missing:
        raise CheckpointError(
            f"{index.parent} lacks {len(missing)} of its {len(by_file)} shards: {', '.join(missing)}",
            fix="download or copy the missing files",
        )
    return {file: by_file[file] for file in sorted(by_file)}


def _open(file: Path) -> Any:
    safetensors = require("safetensors", "read weights")
    try:
        return safetensors.safe_open(str(file), framework="pt", device="cpu")
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{file} is truncated or corrupt: {error}", fix=_AGAIN) from error


def _check_names(file: Path, held: set[str], wanted: set[str] | None) -> None:
    absent = sorted(wanted - held) if wanted else []
    if absent:
        shown = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        raise CheckpointError(
            f"the index names {len(absent)} tensors that {file} does not hold: {shown}",
            fix=f"download {file.name} and {INDEX_FILE} again, both of the same revision",
        )
