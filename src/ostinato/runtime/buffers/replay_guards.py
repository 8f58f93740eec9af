"""Checks before a replay that the tensors a graph reads are still where it reads them.

Each memory that a plan uses and did not make is watched: by the place from which the callable takes its tensor
(`places`), or by the tensor itself. A registered parameter is watched by torch's own registration hooks, which
make the next check a full one, and in rotation, so that a model's weights cost a few at a step; all else is checked
at every step. Called by `Graphed` before each replay.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch.nn.modules import module as torch_modules

from ostinato.errors import AddressChangedError, TensorDroppedError, TensorReboundError
from ostinato.runtime.buffers.places import Place
from ostinato.runtime.capture import External

__all__ = ["PlanGuards", "watch_tensors"]

PER_STEP: Final = 4
"""Registered tensors that a step looks at in rotation, and all others with level "sampled"."""


class _Registrations:
    """Counts, over the process, how often a parameter, buffer or submodule was put into a module."""

    def __init__(self) -> None:
        self.count = 0
        torch_modules.register_module_parameter_registration_hook(self._add)  # type: ignore[no-untyped-call]
        torch_modules.register_module_buffer_registration_hook(self._add)  # type: ignore[no-untyped-call]
        torch_modules.register_module_module_registration_hook(self._add)  # type: ignore[no-untyped-call]

    def _add(self, *_: object) -> None:
        self.count += 1


_registrations = _Registrations()


class _Watched:
    """One memory and how to find out that it moved."""

    __slots__ = ("address", "alias", "dtype", "name", "num_owners", "place", "shape", "strides", "tensor")

    def __init__(self, external: External | None, place: Place | None) -> None:
        tensor = place.tensor if place is not None else external.tensor() if external is not None else None
        assert tensor is not None, "it was used a moment ago"
        self.place = place
        self.alias = tensor.detach()  # keeps the memory, whatever becomes of the tensor
        self.tensor = weakref.ref(tensor)
        self.address = tensor.data_ptr()
        self.shape, self.strides, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self.num_owners = 0
        self.name = place.name if place is not None else f"used by {external.op} at {external.at}" if external else ""

    def is_suspect(self) -> bool:
        """The cheap look: the address, and what stands in its place."""
        tensor = self.tensor()
        return (
            tensor is None
            or tensor.data_ptr() != self.address
            or (self.place is not None and self.place.peek() is not tensor)
        )

    def check(self, key: str) -> None:
        """The whole look; raises what `PlanGuards.check` says."""
        tensor = self.tensor()
        if self.place is not None:
            now = self.place.get()
            if now is not tensor or tensor is None:
                raise TensorReboundError(
                    f"{self.name} is another tensor than at capture; the graph would go on reading the old one",
                    fix="write new values into the old tensor with copy_(), or call recapture()",
                    tensor=self.name,
                    key=key,
                    got="nothing" if now is None else type(now).__name__,
                )
        elif tensor is None:
            if self._count_owners() >= self.num_owners:  # the Python object alone is gone: it was a view, say
                self.tensor = weakref.ref(self.alias)
                return
            raise TensorDroppedError(
                f"a tensor that the graph reads was dropped or replaced since capture: {self.name}",
                fix="keep the tensor, and write new values into it with copy_(), or call recapture()",
                key=key,
            )
        assert tensor is not None
        if tensor.data_ptr() != self.address:
            raise AddressChangedError(
                f"{self.name} moved since capture",
                fix="write into it in place; never re-bind its .data, resize it or move it, or call recapture()",
                tensor=self.name,
                key=key,
                expected=hex(self.address),
                got=hex(tensor.data_ptr()),
            )
        if tensor.shape != self.shape or tensor.stride() != self.strides or tensor.dtype != self.dtype:
            raise AddressChangedError(
                f"{self.name} has another shape, stride or dtype than at capture",
                fix="give it back the layout that was captured, or call recapture()",
                tensor=self.name,
                key=key,
                expected=f"{list(self.shape)} {self.dtype}",
                got=f"{list(tensor.shape)} {tensor.dtype}",
            )

    def settle(self) -> None:
        """Count the owners of the memory, once nobody holds it for the capture's sake any more."""
        self.num_owners = self._count_owners()

    def _count_owners(self) -> int:
        """How many tensors refer to the memory, ours too; 0 where torch does not tell."""
        count = getattr(torch._C, "_storage_Use_Count", None)
        return 0 if count is None else int(count(self.alias.untyped_storage()._cdata))


class PlanGuards:
    """The guards of one captured plan.

    Args:
        key: for messages.
        watched: from `watch_tensors`.
        level: "always", "sampled" (a few in rotation) or "off".
    """

    def __init__(self, key: str, watched: Sequence[_Watched], *, level: str) -> None:
        self._key = key
        self.num_watched = len(watched)
        self._each = [w for w in watched if level == "always" and not (w.place and w.place.is_registered)]
        self._rotating = [] if level == "off" else list(watched)
        self._next = 0
        self._round = 0
        self._registration = _registrations.count

    def settle(self) -> None:
        """Call once, when all captures are done and their externals are dropped."""
        for watched in (*self._each, *self._rotating):
            watched.settle()

    def check(self) -> None:
        """Look at what is due.

        Raises:
            TensorReboundError: its place holds another tensor.
            TensorDroppedError: nobody refers to it any more.
            AddressChangedError: it has other memory, or another layout.
        """
        for watched in self._each:
            if watched.is_suspect():
                watched.check(self._key)
        if self._rotating:
            if self._registration != _registrations.count:
                for watched in self._rotating:
                    watched.check(self._key)
                self._registration = _registrations.count
                return
            start = self._next
            due = self._rotating[start : start + PER_STEP]
            self._next = start + PER_STEP if start + PER_STEP < len(self._rotating) else 0
            whole = self._round % len(due)  # one is looked at whole, layout too: another one each round
            for index, watched in enumerate(due):
                if index == whole or watched.is_suspect():
                    watched.check(self._key)
            self._round += self._next == 0

    def check_all(self) -> None:
        """Look at everything; raises what `check` does."""
        for watched in (*self._each, *self._rotating):
            watched.check(self._key)


def watch_tensors(
    externals: Iterable[External], places: Iterable[Place], *, state: Sequence[Place] = (), known: set[int]
) -> list[_Watched]:
    """What to watch of a plan.

    Args:
        externals: of the plan.
        places: where the callable's tensors may come from.
        state: places that the callable is said to read, seen or not (kernels launched by hand are not).
        known: addresses of memory that is ours and guarded otherwise (static buffers, bridges).
    """
    by_address: dict[int, Place] = {}
    for place in (*state, *places):
        by_address.setdefault(place.tensor.untyped_storage().data_ptr(), place)
    watched = []
    seen = set(known)
    for external in externals:
        its_place = by_address.get(external.address)
        if external.address not in seen and (its_place is not None or external.tensor() is not None):
            watched.append(_Watched(external, its_place))
            seen.add(external.address)
    return watched + [_Watched(None, place) for place in state if place.tensor.untyped_storage().data_ptr() not in seen]
