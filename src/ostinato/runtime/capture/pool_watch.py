"""Refuses `torch.cuda.use_mem_pool` in a segment: what is allocated there is not the graph's.

Torch lets a pool of the user's go before the pool of the capture. Its memory is given to others as soon as the tensor
is gone, while the graph keeps the address. A pool that is entered around the whole capture is not seen, nor is
cudaMalloc by a library, which the device refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ostinato.errors import CaptureError
from ostinato.runtime.breaks import is_recording
from ostinato.runtime.capture.diverted import diverted
from ostinato.runtime.user_frames import user_frame

__all__ = ["refusing_other_pools"]


@contextmanager
def refusing_other_pools() -> Iterator[None]:
    """Hold it while a segment is recorded."""
    if not hasattr(torch.cuda, "use_mem_pool"):
        yield
        return
    with diverted(torch.cuda, "use_mem_pool", _refuse_or_pass):
        yield


def _refuse_or_pass(original: Callable[..., Any]) -> Callable[..., Any]:
    def use_mem_pool(*args: Any, **named: Any) -> Any:
        if is_recording():  # on this thread; others may use theirs
            raise CaptureError(
                "torch.cuda.use_mem_pool allocates outside of the graph's pool in a capture: others are given that "
                "memory while the graph still uses it",
                fix="allocate before the graph, or in a @graph_break function; or leave it to the graph's pool",
                at=user_frame(),
            )
        return original(*args, **named)

    return use_mem_pool
