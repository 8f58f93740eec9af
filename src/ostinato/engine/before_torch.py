"""What a start on CUDA waits for and Python need not: begun in threads, before or beside the import of torch.

The CUDA context of the device (0.3 s) and Triton's key of its own sources (0.6 s of hashing, and the key of every
kernel holds it) need no interpreter, so they fit beside imports, which need nothing else. Command lines begin both
before they import torch; `load_model` begins the key for everybody. Imports no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["begin_triton_key", "head_start"]

_MOST_SECONDS: Final = 10.0
"""That a fork waits for the key: who forks while importing may hold what the import of Triton waits for."""

_SWITCH_SECONDS: Final = 0.0005
"""Of the interpreter between imports and the hashing, which asks for it after every MiB and would wait 5 ms for it."""


def head_start(device: str = "auto") -> None:
    """Begin what an engine on ``device`` will wait for; call it before torch is imported, in a process that runs one.

    The context stays until the process ends. A process that forks workers which use CUDA must not call this.

    Args:
        device: as `EngineConfig.device`. For "cpu", or where torch was built without CUDA, nothing happens; what fails
            here is left for torch to report.
    """
    if device == "cpu" or not _is_cuda_build():
        return
    index = device.partition(":")[2] or "0"
    if index.isdecimal():
        # As torch sets it, and before the driver is: kernels are loaded when they are first used.
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        threading.Thread(target=_make_context, args=(int(index),), name="ostinato-context", daemon=True).start()
    key = begin_triton_key()
    if key is not None:
        _change_hands_faster(key)


@functools.cache
def begin_triton_key() -> threading.Thread | None:
    """Import Triton and have it work the key out, once a process, in a thread; None where there is no Triton."""
    if find_spec("triton") is None:
        return None
    thread = threading.Thread(target=_work_out_key, name="ostinato-triton-key", daemon=True)
    thread.start()
    # A child would find Triton's modules locked by a thread that it does not have, and wait for ever to import them.
    os.register_at_fork(before=functools.partial(_let_end, thread))
    return thread


def _let_end(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():
        thread.join(_MOST_SECONDS)


def _work_out_key() -> None:
    # Not public: where another Triton has it elsewhere, the first kernel works it out as it would have anyway.
    with contextlib.suppress(Exception):
        import_module("triton.runtime.cache").triton_key()


@functools.cache  # a second time, what is usual would be taken from the first
def _change_hands_faster(key: threading.Thread) -> None:
    """Until ``key`` ends."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, _SWITCH_SECONDS))
    threading.Thread(target=_restore_after, args=(key, usual), name="ostinato-switching", daemon=True).start()


def _restore_after(thread: threading.Thread, seconds: float) -> None:
    thread.join()
    sys.setswitchinterval(seconds)


def _make_context(index: int) -> None:
    """The primary context of a device, which torch uses too; the driver's calls let other threads run."""
    with contextlib.suppress(OSError, ctypes.ArgumentError):  # no driver; an index beyond C's integers
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _is_cuda_build() -> bool:
    torch = find_spec("torch")
    return torch is not None and any(
        Path(place, "lib", "libtorch_cuda.so").exists() for place in torch.submodule_search_locations or ()
    )
