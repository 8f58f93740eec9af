"""Writing a file whole or not at all: a reader never finds half of it, and a failure leaves the older one."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, text: str) -> None:
    """Make ``path`` hold ``text``, in UTF-8. A link stays one, and what is no file (a pipe, a device) takes the text.

    Raises:
        OSError: it cannot be written; what was there still is.
    """
    if _is_no_file(path):  # else the device would be replaced
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))  # else the link would be; not `resolve`: it meets circles with no OSError
    handle, staged = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise


def _is_no_file(path: Path) -> bool:
    """Asked of a link as it is: what /dev/stdout leads to need not have a path."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
