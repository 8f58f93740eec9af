"""Read one JSON object from a checkpoint folder, or say which file is at fault.

Called by the tokenizer and by `weights`. Does not know what the keys mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.errors import CheckpointError


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in the file at ``path``.

    Raises:
        CheckpointError: the file cannot be read, is not JSON, or holds something other than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", fix="download or copy this file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a JSON {type(value).__name__}, not an object", fix="download or copy this file again"
        )
    return value


def read_json_object_if_present(path: Path) -> dict[str, Any]:
    """Like `read_json_object`, with an empty object for a file that is not there."""
    return read_json_object(path) if path.is_file() else {}
