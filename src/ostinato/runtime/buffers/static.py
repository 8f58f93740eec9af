"""`StaticBuffers`: the fixed-address inputs of all graphs of one callable, at the largest sizes.

A graph of a smaller bucket reads a prefix of the same memory. Written by the host once a step (facade or
engine), read by replays; a value holds until the next write. Addresses are checked before each replay.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ostinato.errors import AddressChangedError
from ostinato.runtime.buffers.slots import Slot, Tail

__all__ = ["StaticBuffers"]


class StaticBuffers:
    """One tensor a slot, allocated once and never moved.

    Args:
        slots: name -> declaration.
        max_sizes: axis -> largest count, in tokens or requests.
        device: where they live.
    """

    def __init__(self, slots: Mapping[str, Slot], *, max_sizes: dict[str, int], device: torch.device) -> None:
        self.slots = dict(slots)
        self._tensors: dict[str, torch.Tensor] = {}
        for name, slot in self.slots.items():
            rows = slot.rows(max_sizes)
            shape = tuple(d if d is not None else rows for d in slot.shape)
            initial = slot.fill if slot.tail is Tail.FILL else 0
            self._tensors[name] = torch.full(shape, initial, dtype=slot.dtype, device=device)  # type: ignore[arg-type]
        self._addresses = {name: tensor.data_ptr() for name, tensor in self._tensors.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        """The whole buffer of ``name``; write live rows into its head."""
        return self._tensors[name]

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(t.numel() * t.element_size() for t in self._tensors.values())

    def views(self, sizes: dict[str, int]) -> list[torch.Tensor]:
        """The buffers cut to ``sizes``, in slot order: what a callable gets."""
        return [self._cut(name, slot, sizes) for name, slot in self.slots.items()]

    def write(self, name: str, value: torch.Tensor) -> None:
        """Copy ``value`` into the head of buffer ``name``; the caller has checked its spec."""
        buffer = self._tensors[name]
        target = buffer[: value.shape[0]] if self.slots[name].axis is not None else buffer
        if target.data_ptr() != value.data_ptr():
            target.copy_(value, non_blocking=True)

    def pad(self, live: dict[str, int], padded: dict[str, int]) -> None:
        """Apply each slot's tail policy to the rows between ``live`` and ``padded``."""
        for name, slot in self.slots.items():
            if slot.axis is None or slot.tail is Tail.KEEP:
                continue
            start, stop = slot.rows(live), slot.rows(padded)
            if start is not None and stop is not None and start < stop:
                self._tensors[name][start:stop].fill_(0 if slot.tail is Tail.ZERO else slot.fill)

    def check_addresses(self) -> None:
        """Raise `AddressChangedError` if a buffer was re-bound or resized since it was allocated."""
        for name, address in self._addresses.items():
            now = self._tensors[name].data_ptr()
            if now != address:
                raise AddressChangedError(
                    f"static buffer {name!r} moved since capture",
                    fix="write into the buffer in place; never re-bind or resize it",
                    expected=hex(address),
                    got=hex(now),
                )

    def _cut(self, name: str, slot: Slot, sizes: dict[str, int]) -> torch.Tensor:
        rows = slot.rows(sizes)
        return self._tensors[name] if rows is None else self._tensors[name][:rows]
