"""What a start on CUDA waits for and Python need not: begun in threads, before or beside the import of torch.

The CUDA context of the device (0.3 s) and Triton's key of its own sources (0.6 s of hashing, and the key of every
kernel holds it) need no interpreter, so they fit beside imports, which need nothing else. What needs torch but no
model, its state on the device, cuBLAS and the first kernels (0.3 s), follows beside the imports after torch and the
loading. Command lines begin all of it before they import torch; `load_model` begins the key for everybody. Imports no
torch by itself: a thread waits until somebody does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ostinato.engine.switching import switching_faster

__all__ = ["begin_triton_key", "finish_head_start", "head_start"]

_MOST_SECONDS: Final = 10.0
"""That a fork waits for a thread: who forks while importing may hold what the import of Triton waits for."""

_LOOK_SECONDS: Final = 0.02
"""Between two looks whether torch is being imported."""

_MOST_LOOKS: Final = 3000  # a minute: whoever imports torch later has had no use for a head start


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
    begun: list[threading.Thread | None] = []
    if index.isdecimal():
        # As torch sets it, and before the driver is: kernels are loaded when they are first used.
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        threading.Thread(target=_make_context, args=(int(index),), name="ostinato-context", daemon=True).start()
        begun.append(_begin_first_ops(int(index)))
    begun.append(begin_triton_key())
    _switch_faster_beside([thread for thread in begun if thread is not None])


def finish_head_start() -> None:
    """Wait for what `head_start` began on the device, once torch is imported; before a model runs its first step.

    A thread's cuBLAS handle, and with it the workspace, is free for others when the thread has ended.
    """
    for thread in tuple(_at_device):  # they stay in it: of two engines that are made at once, both wait
        thread.join(_MOST_SECONDS)


@functools.cache
def begin_triton_key() -> threading.Thread | None:
    """Import Triton and have it work the key out, once a process, in a thread; None where there is no Triton."""
    if find_spec("triton") is None:
        return None
    has_torch = "torch" in sys.modules  # else its import should have the interpreter, and somebody else comes behind it
    thread = threading.Thread(target=_work_out_key, args=(has_torch,), name="ostinato-triton-key", daemon=True)
    thread.start()
    # A child would find Triton's modules locked by a thread that it does not have, and wait for ever to import them.
    os.register_at_fork(before=functools.partial(_let_end, thread))
    return thread


def _let_end(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():
        thread.join(_MOST_SECONDS)


def _work_out_key(imports_more: bool) -> None:
    # Not public: where another Triton has it elsewhere, the first kernel works it out as it would have anyway.
    with contextlib.suppress(Exception):
        import_module("triton.runtime.cache").triton_key()
    if imports_more:
        _import_for_launches()


def _import_for_launches() -> None:
    """What Triton 3.6 imports at the first launch of any kernel, whose arguments could be descriptors of it."""
    with contextlib.suppress(Exception):
        import_module("triton.experimental.gluon.nvidia.hopper")


def _switch_faster_beside(threads: Iterable[threading.Thread]) -> None:
    """Until ``threads`` have ended."""
    held = contextlib.ExitStack()
    held.enter_context(switching_faster())
    threading.Thread(target=_end_after, args=(threads, held), name="ostinato-switching", daemon=True).start()


def _end_after(threads: Iterable[threading.Thread], held: contextlib.ExitStack) -> None:
    with held:
        for thread in threads:
            thread.join()


def _make_context(index: int) -> None:
    """The primary context of a device, which torch uses too; the driver's calls let other threads run."""
    with contextlib.suppress(OSError, ctypes.ArgumentError):  # no driver; an index beyond C's integers
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


_at_device: Final[list[threading.Thread]] = []


@functools.cache
def _begin_first_ops(index: int) -> threading.Thread:
    """Run torch's first ops on a device, once a process, in a thread that waits for somebody to import torch.

    No daemon: a process that ends meanwhile waits for it, since a thread that comes out of torch's C++ code when the
    interpreter is gone takes the process down.
    """
    is_at_work = threading.Event()
    thread = threading.Thread(target=_make_first_ops, args=(index, is_at_work), name="ostinato-device")
    _at_device.append(thread)
    thread.start()

    def let_end() -> None:  # a child would find torch's locks taken; while the thread waits for torch it holds none
        if is_at_work.is_set():
            _let_end(thread)

    os.register_at_fork(before=let_end)
    return thread


def _make_first_ops(index: int, is_at_work: threading.Event) -> None:
    for _ in range(_MOST_LOOKS):
        if "torch" in sys.modules:
            break
        if not threading.main_thread().is_alive():  # the process ends without torch
            return
        time.sleep(_LOOK_SECONDS)
    else:
        return
    with contextlib.suppress(Exception):
        torch = import_module("torch")  # waits for its lock, and without the interpreter, while it is being imported
        is_at_work.set()
        if torch.cuda.is_available() and index < torch.cuda.device_count():
            with torch.inference_mode(), torch.cuda.device(index):
                _run_first_ops(torch, torch.device("cuda", index))
            _import_for_launches()


def _run_first_ops(torch: Any, device: Any) -> None:
    """One op of each kind that an eager step runs: the first one loads its library or kernels.

    On the stream that engines use, since cuBLAS has a workspace for each. What is made here goes back to torch's
    allocator.
    """
    rows = torch.zeros(16, dtype=torch.int64, device=device)
    table = torch.zeros((64, 64), dtype=torch.bfloat16, device=device)
    hidden = torch.nn.functional.embedding(rows, table)
    torch.nn.functional.linear(hidden, table)  # cuBLAS
    torch.zeros((64, 64), device=device).index_select(0, rows)  # rotary
    (hidden[rows] + hidden).to(torch.float32).copy_(hidden)
    rows.cpu()  # waits


def _is_cuda_build() -> bool:
    torch = find_spec("torch")
    return torch is not None and any(
        Path(place, "lib", "libtorch_cuda.so").exists() for place in torch.submodule_search_locations or ()
    )
