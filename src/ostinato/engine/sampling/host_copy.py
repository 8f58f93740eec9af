"""A device tensor on its way to the host: the copy is started now and read when it is needed.

On CUDA into pinned memory, behind an event. The memory comes from torch's caching host allocator, which hands a
block out again only when its copies have run, so a copy that is still pending is never written over. On the CPU
it is a plain copy. Called by `PendingSample`.
"""

from __future__ import annotations

import torch

__all__ = ["HostCopy"]


class HostCopy:
    """The values that ``tensor`` has at this point of the current stream, whatever is written to it later."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.Event | None = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.Event(tensor.device)  # torch.cuda.Event looks the current stream up in Python
            self._event.record()
        else:
            self._host = tensor.clone()

    def read(self) -> torch.Tensor:
        """The values, on the CPU; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._host
