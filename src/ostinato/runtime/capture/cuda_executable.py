"""A CUDA graph's executable made, updated and launched through the driver, for graphs that share one.

Torch keeps one executable a graph and updates none. It stays the owner of the graph itself (``keep_graph=True``).

Is an update safe while a launch of the same executable runs? New parameters only affect launches to come, those that
are queued or running keep theirs (CUDA driver API, cuGraphExecKernelNodeSetParams; an update is that for all nodes at
once), and a launch is ordered behind earlier ones of the same executable on whatever stream (cuGraphLaunch). Hence
nothing waits here. tests/gpu/test_shared_executables_cuda.py holds the device to it.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Final

import torch

from ostinato.errors import CaptureError, DeviceUnavailableError
from ostinato.runtime.memory import driver

__all__ = ["CudaExecutable", "require_updates"]

# As torch instantiates: CU_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH and _USE_NODE_PRIORITY, cuda.h
_FLAGS: Final = ctypes.c_ulonglong(1 | 8)
# CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, _NOT_SUPPORTED, _INVALID_VALUE, cuda.h; anything else is no answer
_REFUSED: Final = frozenset({910, 801, 1})
_CALLS: Final = ("cuGraphInstantiateWithFlags", "cuGraphExecUpdate_v2", "cuGraphLaunch", "cuGraphExecDestroy")

_thread = threading.local()


class _UpdateResult(ctypes.Structure):
    """CUgraphExecUpdateResultInfo, cuda.h."""

    _fields_ = (("result", ctypes.c_int), ("error_node", ctypes.c_void_p), ("error_from_node", ctypes.c_void_p))


def require_updates() -> None:
    """Raise if this machine cannot share executables.

    Raises:
        DeviceUnavailableError: says what to install.
    """
    if missing := [call for call in _CALLS if not hasattr(driver(), call)]:
        raise DeviceUnavailableError(
            f"the CUDA driver has no {missing[0]}, which shared executables need",
            fix="install a driver of CUDA 12.0 or later, or use executables='own'",
        )
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        raise DeviceUnavailableError(
            f"torch {torch.__version__} does not hand out its graphs, which shared executables need",
            fix="install torch 2.11 or later, or use executables='own'",
        )


class CudaExecutable:
    """`Instance` made from ``source``: torch's graph rather than its address, so that who may be loaded stays alive."""

    def __init__(self, source: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._device = device
        self._handle = ctypes.c_void_p()
        self._result = _UpdateResult()
        self._update, self._launch = driver().cuGraphExecUpdate_v2, driver().cuGraphLaunch
        with torch.cuda.device(device):
            _bind_context(device)
            _check(
                driver().cuGraphInstantiateWithFlags(ctypes.byref(self._handle), _address(source), _FLAGS),
                "make an executable of a graph",
            )

    def update(self, source: torch.cuda.CUDAGraph) -> bool:
        """See `Instance.update`."""
        with torch.cuda.device(self._device):
            _bind_context(self._device)
            status = self._update(self._handle, _address(source), ctypes.byref(self._result))
        if status in _REFUSED:
            return False
        _check(status, "update an executable")
        return True

    def launch(self) -> None:
        """See `Instance.launch`."""
        with torch.cuda.device(self._device):
            _bind_context(self._device)
            stream = torch.cuda.current_stream(self._device).cuda_stream
            _check(self._launch(self._handle, ctypes.c_void_p(stream)), "launch an executable")

    def destroy(self) -> None:
        """See `Instance.destroy`. One that still runs is destroyed when it is done."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            _check(driver().cuGraphExecDestroy(handle), "destroy an executable")


def _address(graph: torch.cuda.CUDAGraph) -> ctypes.c_void_p:
    return ctypes.c_void_p(graph.raw_cuda_graph())


def _bind_context(device: torch.device) -> None:
    """Give a thread that has not called CUDA yet the device's context, which the driver library asks for."""
    bound: set[int] = _thread.__dict__.setdefault("bound", set())
    if device.index not in bound:
        torch.cuda.current_stream(device).query()  # a runtime call that waits for nothing
        bound.add(device.index)


def _check(status: int, doing: str) -> None:
    if status != 0:
        raise CaptureError(f"the driver could not {doing}", status=status)
