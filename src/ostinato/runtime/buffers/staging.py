"""`Staging`: host memory in which a step's inputs are assembled, and the one copy that brings them over.

On CUDA a ring of pinned mirrors of the arena: the copy is asynchronous, so a mirror may be rewritten only
once its last copy has run (PITFALLS: pinned buffer rewritten while its copy is pending). On the CPU one mirror
is enough. A mirror is nobody else's, unlike the arena: what a step wrote stays, and `HostSlots.kept` can say what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from ostinato.errors import InputSpecError
from ostinato.runtime.buffers.static import Sizes, StaticBuffers, sizes_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BindCopy", "HostSlots", "Staging"]

_MOST_SIZES = 4096  # whose views are kept

BindCopy: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Callable[[], object]]
"""(target on the device, source in pinned memory) -> what copies, on the stream that is current when it is called. Both
are flat byte tensors of the same length, a multiple of 64."""


class HostSlots(dict[str, torch.Tensor]):
    """Slots on the host's side at some sizes, by name.

    Attributes:
        kept: what its writer says of what it left here, in words of its own, so that it need not write it again.
            None where that was never said, and once the memory has held a step of other sizes. Whoever writes what
            another has left sets it to None.
    """

    kept: object = None

    @cached_property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The same memory for numpy, looked up once: a step has some ten slots.

        Raises:
            InputSpecError: a slot is of a dtype that numpy does not have.
        """
        return {name: _array(name, tensor) for name, tensor in self.items()}


def _array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    try:
        return tensor.numpy()
    except TypeError:
        raise InputSpecError(
            f"slot {name} is {tensor.dtype}, which numpy does not have",
            fix="write into the tensors that open() gives, not into their arrays",
        ) from None


class _Step(NamedTuple):
    """What one mirror gives a step of some sizes."""

    slots: HostSlots
    copy: Callable[[], object]
    """Brings them over."""


class Staging:
    """Used by one thread: `open`, fill the views, `upload`.

    Args:
        buffers: where the data goes.
        depth: mirrors in the ring; with n, n - 1 copies may be pending while the next step is assembled.
        bind_copy: how a step is copied; by default by the driver. Not asked on the CPU. It may be in a way that torch
            does not know of: the mirrors go when their last copies have run.
    """

    def __init__(self, buffers: StaticBuffers, *, depth: int = 2, bind_copy: BindCopy | None = None) -> None:
        self._buffers = buffers
        self._is_host = buffers.arena.device.type == "cpu"
        self._bind_copy = _by_driver if self._is_host or bind_copy is None else bind_copy
        num = 1 if self._is_host else depth
        self._mirrors = [self._mirror() for _ in range(num)]
        # Not torch.cuda.Event, which looks the current stream up in Python: four times the price.
        self._pending: list[torch.Event | None] = [None] * num
        self._steps: list[dict[tuple[int, ...], _Step]] = [{} for _ in range(num)]
        self._opened: list[_Step | None] = [None] * num  # last, of each mirror
        self._current = 0

    def open(self, sizes: Sizes) -> HostSlots:
        """Host tensors of all slots at ``sizes``, with stale contents; fill every row that `HostSlots.kept` does not
        say is right, tails too.

        Raises:
            ConfigError: ``sizes`` lacks an axis, or exceeds the largest that were planned.
        """
        self._current = (self._current + 1) % len(self._mirrors)
        event = self._pending[self._current]
        if event is not None:
            event.synchronize()
        step = self._step(sizes)
        if step is not self._opened[self._current]:  # the layouts of other sizes lie over this one
            step.slots.kept = None
            self._opened[self._current] = step
        return step.slots

    def upload(self, sizes: Sizes) -> None:
        """Copy what `open` handed out to the arena, in one copy on the current stream."""
        step = self._step(sizes)
        if self._is_host:
            step.copy()
            return
        event = self._pending[self._current] or torch.Event(self._buffers.arena.device)
        try:
            step.copy()
        finally:  # an interrupt may come when the copy is launched already
            event.record()
            self._pending[self._current] = event

    def __del__(self) -> None:
        for event in getattr(self, "_pending", ()):
            if event is not None:
                try:
                    event.synchronize()
                except RuntimeError:  # the device or its driver is gone, and reads no more
                    return

    def _step(self, sizes: Sizes) -> _Step:
        """Views of the current mirror, looked up once for each sizes."""
        steps = self._steps[self._current]
        key = sizes_key(sizes)
        if key not in steps:
            if len(steps) >= _MOST_SIZES:
                steps.clear()
            mirror, num_bytes = self._mirrors[self._current], self._buffers.num_bytes_at(sizes)
            slots = HostSlots(self._buffers.views_of(mirror, sizes))
            steps[key] = _Step(slots, self._bind_copy(self._buffers.arena[:num_bytes], mirror[:num_bytes]))
        return steps[key]

    def _mirror(self) -> torch.Tensor:
        return torch.empty(self._buffers.arena.shape, dtype=torch.uint8, pin_memory=not self._is_host)


def _by_driver(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    return partial(target.copy_, source, non_blocking=True)
