"""`BridgePool`: fixed addresses for what breaks return.

A break may return a tensor at a new address every time; the next segment reads the one it was captured
with. So the value is copied into a bridge. Keys replay one at a time and the largest is captured first, so
the n-th bridge of a smaller key is a prefix of the n-th bridge of a larger one.
"""

from __future__ import annotations

import torch

__all__ = ["BridgePool"]


class BridgePool:
    """Hands out bridges by their position in a plan; owns their memory until the runner is dropped."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all bridges."""
        return sum(t.numel() for t in self._storages.values())

    @property
    def addresses(self) -> set[int]:
        """Of the memory behind all bridges."""
        return {t.untyped_storage().data_ptr() for t in self._storages.values()}

    def take(self, position: int, like: torch.Tensor) -> torch.Tensor:
        """The bridge at ``position`` in the plan, with the shape and dtype of ``like``, contiguous."""
        nbytes = like.numel() * like.element_size()
        storage = self._storages.get(position)
        if storage is None or storage.numel() < nbytes or storage.device != like.device:
            # A larger one replaces the old for later plans; plans that hold the old keep it alive.
            storage = torch.empty(max(nbytes, 1), dtype=torch.uint8, device=like.device)
            self._storages[position] = storage
        return storage[:nbytes].view(like.dtype).view(like.shape)
