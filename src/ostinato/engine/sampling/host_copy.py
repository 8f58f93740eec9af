"""Device tensors on their way to the host: a copy is started now and read when it is needed.

On CUDA into pinned memory, behind an event. `HostCopy` holds one copy, in memory of its own; a `CopyRing` keeps the
memory and the event of a copy that was used for the next of its length, since making them costs a step more than the
copy, and the steps that give first tokens are those whose lengths change. One that is never given back is never written
over, and its memory goes back only when the copy has run. Called by `PendingSample`.
"""

from __future__ import annotations

import torch

from ostinato.engine.kernels.pinned_copy import KernelCopy, copies_by_kernel

__all__ = ["CopyRing", "HostCopy"]


class HostCopy:
    """The values that ``tensor`` has at this point of the current stream, whatever is written to it later."""

    def __init__(self, tensor: torch.Tensor) -> None:
        with torch.inference_mode(False):  # wherever it is made, it can be written everywhere
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        # torch.cuda.Event looks the current stream up in Python.
        self._event = torch.Event(tensor.device) if tensor.is_cuda else None
        self._kernel = None
        if copies_by_kernel(tensor.device) and tensor.numel() and tensor.itemsize == 8 and tensor.is_contiguous():
            self._kernel = KernelCopy(self._host, tensor.device)
        self.start(tensor)

    def start(self, tensor: torch.Tensor) -> None:
        """Copy ``tensor``, which is like the first; the values of the copy before were read and are not needed."""
        try:
            if self._kernel is not None:
                self._kernel.from_device(tensor)
            else:
                self._host.copy_(tensor, non_blocking=True)
        finally:  # an interrupt may come when the copy is launched already
            if self._event is not None:
                self._event.record()

    def __del__(self) -> None:
        if getattr(self, "_kernel", None) is not None and self._event is not None:
            try:  # torch's allocator of pinned memory does not know that a kernel writes there
                self._event.synchronize()
            except RuntimeError:  # the device or its driver is gone, and writes no more; the engine has told so
                return

    def __len__(self) -> int:
        return len(self._host)

    def read(self) -> torch.Tensor:
        """The values, on the CPU; waits until they are there. They hold until the next `start`."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


class CopyRing:
    """Copies of vectors of one dtype and device, such as the tokens of each step. Used by one thread."""

    def __init__(self) -> None:
        self._idle: dict[int, list[HostCopy]] = {}  # by length: as many as were ever in flight at once

    def start(self, vector: torch.Tensor) -> HostCopy:
        """Begin to copy ``vector``, [num]."""
        idle = self._idle.get(len(vector))
        if not idle:
            return HostCopy(vector)
        copy = idle.pop()
        copy.start(vector)
        return copy

    def give_back(self, copy: HostCopy) -> None:
        """Take the memory of a copy from `start` that was read, once, when nobody will read it again."""
        self._idle.setdefault(len(copy), []).append(copy)
