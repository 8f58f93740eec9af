"""Copies between pinned host memory and the device, done by a kernel: they follow the kernels before without a gap.

The driver's own copies run on another engine of the device, and handing over to it and back costs some 10 us each way,
in which nothing else runs: between two replays of a graph, with a copy either way, 25 to 30 us a step on an H200. A
kernel reads and writes pinned memory where it lies, at the speed of the bus. For the few hundred KiB of a step; whoever
has more to copy is as well served by the driver. Called by the executor and by copies of tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

__all__ = ["KernelCopy", "copies_by_kernel"]

logger = logging.getLogger("ostinato")

_WORD_BYTES = 8


def copies_by_kernel(device: torch.device) -> bool:
    """Whether `KernelCopy` runs for ``device``: CUDA, with triton installed."""
    return device.type == "cuda" and find_spec("triton") is not None


class KernelCopy:
    """Copies of one size between a pinned tensor and device tensors, either way, on the current stream.

    The memory must stay until the copy has run: unlike the driver's copies, torch does not know of this one.

    Args:
        pinned: contiguous, in pinned memory.
        device: the device of the other side.
    """

    def __init__(self, pinned: Tensor, device: torch.device) -> None:
        from ostinato.engine.kernels.triton_copy import launch_copy

        assert pinned.is_contiguous() and pinned.is_pinned(), "a kernel can reach pinned memory alone"
        mapped = torch.as_tensor(_Mapped(pinned), device=device)
        self._mapped, self._launch = _words(mapped), launch_copy
        if mapped.data_ptr() != pinned.data_ptr():
            # CUDA counts pinned memory among the device that was current when it was allocated, and torch's allocator
            # hands it to all. A torch that goes by that has moved its contents here: no kernel would reach the memory.
            logger.info("the driver copies pinned memory of another device than %s", device)
            self._mapped, self._launch = _words(pinned), _by_driver

    def from_device(self, source: Tensor) -> None:
        """Copy from ``source``, contiguous and of the same number of bytes."""
        self._launch(self._mapped, _words(source))

    def into(self, target: Tensor) -> Callable[[], None]:
        """What copies to ``target``, contiguous and of the same number of bytes, each time that it is called."""
        words, mapped, launch = _words(target), self._mapped, self._launch
        return lambda: launch(words, mapped)


def _by_driver(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _words(tensor: Tensor) -> Tensor:
    assert tensor.is_contiguous() and tensor.nbytes % _WORD_BYTES == 0, "copied by whole words"
    return tensor if tensor.dtype is torch.int64 and tensor.ndim == 1 else tensor.view(-1).view(torch.int64)


class _Mapped:
    """Pinned memory as the device sees it: at the same address, in one address space with its own."""

    def __init__(self, pinned: Tensor) -> None:
        self._pinned = pinned  # kept while a tensor looks at it
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (pinned.nbytes,),
            "typestr": "|u1",
            "data": (pinned.data_ptr(), False),
            "strides": None,
            "version": 2,
        }
