"""Open a GGUF file: metadata as plain Python values, tensors as float32 on demand.

The one place that calls the ``gguf`` library. Called by the converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.engine.text.optional_import import require
from ostinato.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PURPOSE = "read GGUF files"


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One stored tensor.

    shape: in the order of PyTorch, [rows, columns]; GGUF itself lists them the other way round.
    type_name: how it is stored: ``"F32"``, ``"F16"``, ``"BF16"``, ``"Q4_1"``...
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    raw: Any
    raw_type: Any

    def dequantize(self) -> NDArray[np.float32]:
        """The values as float32, a new array of `shape`.

        Raises:
            CheckpointError: the library cannot decode this type.
        """
        library = require("gguf", _PURPOSE)
        numpy = require("numpy", _PURPOSE)
        try:
            values = library.dequantize(self.raw, self.raw_type)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(
                f"cannot decode tensor {self.name!r} of type {self.type_name}: {error}",
                fix="take a GGUF file of another quantisation, such as Q8_0 or Q4_K_M",
            ) from error
        array: NDArray[np.float32] = numpy.array(values, dtype=numpy.float32).reshape(self.shape)
        return array


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """An open file. metadata: key to number, text or list; tensors: by their GGUF names, in file order."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Map the file and read its header. Tensor data stays on disk until `GgufTensor.dequantize`.

    Raises:
        CheckpointError: not a GGUF file, or truncated.
        EngineError: the ``gguf`` library is not installed.
    """
    library = require("gguf", _PURPOSE)
    try:
        reader = library.GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {
            tensor.name: GgufTensor(
                name=tensor.name,
                shape=tuple(int(size) for size in reversed(tensor.shape)),
                type_name=tensor.tensor_type.name,
                raw=tensor.data,
                raw_type=tensor.tensor_type,
            )
            for tensor in reader.tensors
        }
    except Exception as error:  # on a bad file the reader fails wherever it happens to be
        raise CheckpointError(
            f"{path} is not a whole GGUF file: {type(error).__name__}: {error}", fix="download or copy this file again"
        ) from error
    return GgufFile(path=path, metadata=metadata, tensors=tensors)
