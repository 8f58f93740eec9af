"""Writing a file whole or not at all: a reader never finds half of it, and a failure leaves the older one."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, text: str) -> None:
    """Make ``path`` hold ``text``, in UTF-8. A link stays one, and what is no file (a pipe, a device) takes the text.

    A new file has the permissions that `open` gives one, an older one keeps its own.

    Raises:
        OSError: it cannot be written; what was there still is.
    """
    if _is_no_file(path):  # else the device would be replaced
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))  # else the link would be; not `resolve`: it meets circles with no OSError
    staged = path.parent / f".{path.name}-{secrets.token_hex(8)}"
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask, which `mkstemp` leaves out
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if path.exists():
            staged.chmod(stat.S_IMODE(path.stat().st_mode))
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
