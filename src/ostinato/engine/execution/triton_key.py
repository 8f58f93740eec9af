"""Triton's key of its own sources, which the key of every kernel holds: worked out beside what else a start does.

It takes a third of a second, nearly all of it hashing, for which Python lets other threads run. Called at the start of
loading.
"""

from __future__ import annotations

import contextlib
import threading
from importlib import import_module
from importlib.util import find_spec

__all__ = ["begin_triton_key"]


def begin_triton_key() -> threading.Thread | None:
    """Import Triton and have it work the key out, in a thread of its own; None where there is no Triton."""
    if find_spec("triton") is None:
        return None
    thread = threading.Thread(target=_work_out, name="ostinato-triton-key", daemon=True)
    thread.start()
    return thread


def _work_out() -> None:
    # Not public: where another Triton has it elsewhere, the first kernel works it out as it would have anyway.
    with contextlib.suppress(Exception):
        import_module("triton.runtime.cache").triton_key()
