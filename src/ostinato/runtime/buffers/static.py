"""`StaticBuffers`: the fixed-address inputs of all graphs of one callable, packed in one arena.

Each pair of padded sizes has its own compact layout at the arena's start, so that one host-to-device copy
brings a whole step. A graph bakes in its own layout, and every step rewrites all of it: live rows, then
tails by slot policy. Slots that count tokens come first, so their places do not depend on the requests.
Written by the host once a step (facade or engine), read by replays; values hold until the next write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import torch

from ostinato.errors import AddressChangedError, ConfigError
from ostinato.runtime.buffers.slots import NUM_REQS, NUM_TOKENS, Slot, Tail
from ostinato.runtime.keys import LiveBatch

__all__ = ["Sizes", "StaticBuffers", "live_sizes", "sizes_key"]

Sizes: TypeAlias = dict[str, int]
"""Axis name -> count, in tokens or requests."""

_ALIGNMENT_BYTES = 64
_CACHE_LIMIT = 4096
_PLACE_ORDER = {NUM_TOKENS: 0, None: 1, NUM_REQS: 2}


class StaticBuffers:
    """One arena, allocated once and never moved.

    Args:
        slots: name -> declaration.
        max_sizes: axis -> largest count.
        device: where they live.
    """

    def __init__(self, slots: Mapping[str, Slot], *, max_sizes: Sizes, device: torch.device) -> None:
        self.slots = dict(slots)
        self.max_sizes = dict(max_sizes)
        self._places: dict[tuple[int, int], list[tuple[str, int, tuple[int, ...]]]] = {}
        self._views: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        num_bytes = self.num_bytes_at(max_sizes)
        try:
            with torch.inference_mode(False):  # wherever it is made, it can be written and watched everywhere
                self.arena = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise ConfigError(
                f"the static inputs of a step of {max_sizes} need {num_bytes:,} bytes, which cannot be allocated",
                fix="lower the largest sizes",
            ) from error
        self._address = self.arena.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.numel()

    def num_bytes_at(self, sizes: Sizes) -> int:
        """Bytes from the arena's start that hold a step of ``sizes``; they can be seen as any dtype."""
        name, offset, shape = self._layout(sizes)[-1]
        return offset + _aligned(_num_bytes(shape, self.slots[name].dtype))

    def views(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        """The slots at ``sizes``, by name and in declaration order: what a callable gets."""
        key = sizes_key(sizes)
        cached = self._views.get(key)
        if cached is None:
            if len(self._views) >= _CACHE_LIMIT:
                self._views.clear()
            cached = self._views[key] = self.views_of(self.arena, sizes)
        return cached

    def views_of(self, memory: torch.Tensor, sizes: Sizes) -> dict[str, torch.Tensor]:
        """Views like `views`, but into ``memory``, a byte tensor with the arena's layout (a host mirror).

        Raises:
            ConfigError: ``sizes`` exceed the largest that were planned.
        """
        over = {axis: size for axis, size in sizes.items() if size > self.max_sizes[axis]}
        if over:
            raise ConfigError(
                f"a step of {over} exceeds the static buffers", fix=f"plan for more than {self.max_sizes}"
            )
        found = {}
        typed: dict[torch.dtype, torch.Tensor] = {}  # one view for all slots of a dtype: prompts come in any size
        for name, offset, shape in self._layout(sizes):
            dtype = self.slots[name].dtype
            if dtype not in typed:
                typed[dtype] = memory.view(dtype)
            first = offset // dtype.itemsize
            view = typed[dtype][first : first + math.prod(shape)]
            found[name] = view if len(shape) == 1 else view.view(shape)
        return {name: found[name] for name in self.slots}

    def write(self, values: Mapping[str, torch.Tensor], sizes: Sizes) -> None:
        """Copy live ``values`` into the heads of the slots at padded ``sizes``; the caller has checked their specs."""
        for name, target in self.views(sizes).items():
            value = values[name]
            target = target[: value.shape[0]] if self.slots[name].axis is not None else target
            target.copy_(value, non_blocking=True)

    def pad(self, live: Sizes, padded: Sizes) -> None:
        """Apply each slot's tail policy to the rows between ``live`` and ``padded``."""
        views = self.views(padded)
        for name, slot in self.slots.items():
            start = slot.rows(live)
            if start is None or slot.tail is Tail.KEEP:
                continue
            tail = views[name][start:]
            if tail.shape[0]:
                tail.fill_(0 if slot.tail is Tail.ZERO else slot.fill)

    def check_addresses(self) -> None:
        """Raise `AddressChangedError` if the arena was re-bound or resized since it was allocated."""
        now = self.arena.data_ptr()
        if now != self._address:
            raise AddressChangedError(
                "the static buffers moved since capture",
                fix="write into the buffers in place; never re-bind or resize them",
                expected=hex(self._address),
                got=hex(now),
            )

    def _layout(self, sizes: Sizes) -> list[tuple[str, int, tuple[int, ...]]]:
        """``(name, byte offset, shape)`` in the order of their places."""
        key = sizes_key(sizes)
        layout = self._places.get(key)
        if layout is None:
            if len(self._places) >= _CACHE_LIMIT:
                self._places.clear()
            layout, offset = [], 0
            for name, slot in sorted(self.slots.items(), key=lambda item: _PLACE_ORDER[item[1].axis]):
                rows = slot.rows(sizes) or 0
                shape = tuple(rows if d is None else d for d in slot.shape)
                layout.append((name, offset, shape))
                offset += _aligned(_num_bytes(shape, slot.dtype))
            self._places[key] = layout
        return layout


def live_sizes(live: LiveBatch) -> Sizes:
    """The sizes of ``live`` unpadded. Where requests are not counted, each token counts as one."""
    return {NUM_TOKENS: live.num_tokens, NUM_REQS: live.num_tokens if live.num_reqs is None else live.num_reqs}


def sizes_key(sizes: Sizes) -> tuple[int, int]:
    """Tokens and requests of ``sizes``: what a layout depends on.

    Raises:
        ConfigError: one of the two is not given.
    """
    try:
        return sizes[NUM_TOKENS], sizes[NUM_REQS]
    except KeyError as missing:
        raise ConfigError(
            f"the sizes {sizes} have no {missing}", fix=f"give {NUM_TOKENS} and {NUM_REQS}, or use live_sizes()"
        ) from None


def _num_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
