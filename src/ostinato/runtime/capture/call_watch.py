"""Refuses calls of a segment to torch's device module, past all ops: a wait for the device, another memory pool.

Torch lets a pool of the user's go before the pool of the capture. Its memory is given to others as soon as the tensor
is gone, while the graph keeps the address. A pool that is entered around the whole capture is not seen, nor is
cudaMalloc by a library, which the device refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ostinato.errors import CaptureError, HostSyncError
from ostinato.runtime.breaks import is_recording
from ostinato.runtime.capture.diverted import diverted
from ostinato.runtime.user_frames import user_frame

__all__ = ["refusing_calls"]


@contextmanager
def refusing_calls(device: torch.device) -> Iterator[None]:
    """Hold it while a segment is recorded on ``device``."""
    module = torch.get_device_module(device)
    with ExitStack() as stack:
        stack.enter_context(diverted(module, "synchronize", _synchronize(device)))
        if hasattr(module, "use_mem_pool"):
            stack.enter_context(diverted(module, "use_mem_pool", _use_mem_pool))
        yield


# Each passes through for other threads.


def _synchronize(capturing: torch.device) -> Callable[..., Any]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def synchronize(device: Any = None) -> Any:
            if is_recording() and _is_same(capturing, device):
                raise HostSyncError(
                    f"torch.{capturing.type}.synchronize() would wait for the device in a capture",
                    fix="move the call into a @graph_break function, or do it during warm_up",
                    op=f"torch.{capturing.type}.synchronize",
                    at=user_frame(),
                )
            return original(device)

        return synchronize

    return wrap


def _is_same(capturing: torch.device, device: Any) -> bool:
    """Whether torch would take ``device`` for the one that captures."""
    if capturing.type == "cpu":
        return True
    index = device if device is None or isinstance(device, int) else torch.device(device).index
    return (torch.get_device_module(capturing).current_device() if index is None else index) == capturing.index


def _use_mem_pool(original: Callable[..., Any]) -> Callable[..., Any]:
    def use_mem_pool(*args: Any, **named: Any) -> Any:
        if is_recording():
            raise CaptureError(
                "torch.cuda.use_mem_pool allocates outside of the graph's pool in a capture: others are given that "
                "memory while the graph still uses it",
                fix="allocate before the graph, or in a @graph_break function; or leave it to the graph's pool",
                op="torch.cuda.use_mem_pool",
                at=user_frame(),
            )
        return original(*args, **named)

    return use_mem_pool
