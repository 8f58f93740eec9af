"""Writing a file whole or not at all: a reader never finds half of it, and a failure leaves the older one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, text: str) -> None:
    """Make ``path`` hold ``text``, in UTF-8. A link stays one, and what is no file (a pipe, a device) takes the text.

    Raises:
        OSError: it cannot be written; what was there still is.
    """
    path = path.resolve()  # else the link would be replaced
    if path.exists() and not path.is_file() and not path.is_dir():  # else the device would be
        path.write_text(text, encoding="utf-8")
        return
    handle, staged = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise
