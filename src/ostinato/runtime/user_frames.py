"""Where in the user's code something happened: the innermost frame outside torch, Triton and this package's runtime.

For error messages: an op that is refused deep in a capture stands in somebody's model.
"""

from __future__ import annotations

import sys
import traceback
from types import FrameType

__all__ = ["raising_frame", "user_frame"]

_OTHERS = ("torch.", "triton.", "ostinato.runtime.", "contextlib", "functools")


def user_frame() -> str:
    """``file:line`` of the innermost frame outside torch, Triton and this package's runtime."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def raising_frame(error: BaseException) -> str:
    """``file:line`` of the innermost user frame that ``error`` came through."""
    found = "unknown"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_users(frame):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def _is_users(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return not (module in ("torch", "triton") or module.startswith(_OTHERS))
