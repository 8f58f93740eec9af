"""`DeviceLock`: one thread at a time runs steps, and on the engine's device.

A current device is each thread's own, and a kernel is launched there, wherever its tensors are: an engine that one
thread made on ``cuda:1`` would launch on ``cuda:0`` from another. Held by `LLM` around all work of its engine, but its
making, which `find_device` looks after.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["DeviceLock"]


class DeviceLock:
    """A reentrant lock; while it is held, ``device`` is current. Whoever was current is so again afterwards.

    Args:
        device: of the engine, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._lock = threading.RLock()
        self._index = device.index if device.type == "cuda" else None
        self._before: list[int | None] = []  # for each time that it is held, the device to go back to

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._before.append(self._go_to(self._index))
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._go_to(self._before.pop())
        finally:
            self._lock.release()

    def _go_to(self, index: int | None) -> int | None:
        """Make ``index`` current, and return what was; None where nothing was to be done."""
        if index is None:
            return None
        try:
            current = torch.cuda.current_device()
            if current == index:
                return None
            torch.cuda.set_device(index)
        except RuntimeError:  # a device that has failed tells nothing any more: an engine can be closed even so
            return None
        return current
