"""Checks before a replay that the tensors a graph reads are still where it reads them.

An error names the tensor, the key, the segment that used it first, and since when: the last check that saw it right.
Each memory that a plan uses and did not make is watched: by the place from which the callable takes its tensor
(`places`), or by the tensor itself. A registered parameter is watched by torch's own registration hooks, which
make the next check a full one, and in rotation, so that a model's weights cost a few at a step; all else is checked
at every step. Called by `Graphed` before each replay.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch.nn.modules import module as torch_modules

from ostinato.errors import AddressChangedError, TensorDroppedError, TensorReboundError
from ostinato.runtime.buffers.places import Place
from ostinato.runtime.capture import External

__all__ = ["PlanGuards", "watch_tensors"]

PER_STEP: Final = 4
"""Registered tensors that a step looks at in rotation, and all others with level "sampled"."""


# Called by `map` without a frame of Python each: a step's look costs about 0.1 us a tensor.
_tensor_of = weakref.ref.__call__
_address_of = torch.Tensor.data_ptr


class _Registrations:
    """Counts, over the process, how often a parameter, buffer or submodule was put into a module."""

    def __init__(self) -> None:
        self.count = 0
        torch_modules.register_module_parameter_registration_hook(self._add)  # type: ignore[no-untyped-call]
        torch_modules.register_module_buffer_registration_hook(self._add)  # type: ignore[no-untyped-call]
        torch_modules.register_module_module_registration_hook(self._add)  # type: ignore[no-untyped-call]

    def _add(self, *_: object) -> None:
        if not torch.compiler.is_compiling():  # a callable that is traced may register, and would depend on the count
            self.count += 1


_registrations = _Registrations()


class _Watched:
    """One memory and how to find out that it moved."""

    __slots__ = (
        "address",
        "alias",
        "device",
        "dtype",
        "name",
        "num_owners",
        "place",
        "segment",
        "shape",
        "strides",
        "tensor",
    )

    def __init__(self, external: External | None, place: Place | None) -> None:
        tensor = place.tensor if place is not None else external.tensor() if external is not None else None
        assert tensor is not None, "it was used a moment ago"
        self.place = place
        self.alias = tensor.detach()  # keeps the memory, whatever becomes of the tensor
        self.tensor = weakref.ref(tensor)
        self.address = tensor.data_ptr()
        self.shape, self.strides = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        self.num_owners = 0
        self.name = place.name if place is not None else f"used by {external.op} at {external.at}" if external else ""
        self.segment = external.first_use if external is not None else "unknown: no op was seen to read it"

    def find_move(self, key: str) -> AddressChangedError | None:
        """What is wrong with where it lies; see `PlanGuards.check` for the errors."""
        tensor = self.tensor()
        if self.place is not None:
            now = self.place.get()
            if now is not tensor or tensor is None:
                return TensorReboundError(
                    f"{self.name} is another tensor than at capture; the graph would go on reading the old one",
                    fix="write new values into the old tensor with copy_(), or call recapture()",
                    tensor=self.name,
                    key=key,
                    got="nothing" if now is None else type(now).__name__,
                )
        elif tensor is None:
            if self._count_owners() >= self.num_owners:  # the Python object alone is gone: it was a view, say
                self.tensor = weakref.ref(self.alias)
                return None
            return TensorDroppedError(
                f"a tensor that the graph reads was dropped or replaced since capture: {self.name}",
                fix="keep the tensor, and write new values into it with copy_(), or call recapture()",
                key=key,
            )
        assert tensor is not None
        if tensor.data_ptr() != self.address:
            return AddressChangedError(
                f"{self.name} moved since capture",
                fix="write into it in place; never re-bind its .data, resize it or move it, or call recapture()",
                tensor=self.name,
                key=key,
                expected=hex(self.address),
                got=hex(tensor.data_ptr()),
            )
        return None

    def find_other_layout(self, key: str) -> AddressChangedError | None:
        """What is wrong with its layout, when `find_move` has found nothing."""
        tensor = self.tensor()
        assert tensor is not None, "it was found a moment ago"
        if (tensor.shape, tensor.stride(), tensor.dtype, tensor.device) != (
            self.shape,
            self.strides,
            self.dtype,
            self.device,
        ):
            return AddressChangedError(
                f"{self.name} has another shape, stride, dtype or device than at capture",
                fix="give it back the layout that was captured, or call recapture()",
                tensor=self.name,
                key=key,
                expected=f"{list(self.shape)} {self.dtype} {self.device}",
                got=f"{list(tensor.shape)} {tensor.dtype} {tensor.device}",
            )
        return None

    def settle(self) -> None:
        """Count the owners of the memory, once nobody holds it for the capture's sake any more."""
        self.num_owners = self._count_owners()

    def _count_owners(self) -> int:
        """How many tensors refer to the memory, ours too; 0 where torch does not tell."""
        count = getattr(torch._C, "_storage_Use_Count", None)
        return 0 if count is None else int(count(self.alias.untyped_storage()._cdata))


class _Group:
    """Tensors that are looked at together, in one pass at C speed: addresses, and what stands in each place."""

    def __init__(self, watched: Sequence[_Watched]) -> None:
        self.watched = watched
        self.read()

    def read(self) -> None:
        """Take it over as it stands: all are right; some may be watched by another reference now."""
        self._refs = [each.tensor for each in self.watched]
        self._addresses = [each.address for each in self.watched]
        placed = [(each.place.peek, each.tensor) for each in self.watched if each.place is not None]
        self._peeks: list[Any] = [peek for peek, _ in placed]
        self._placed_refs = [reference for _, reference in placed]

    def is_as_read(self) -> bool:
        """The cheap look; where it shows anything, the whole one must judge."""
        try:
            now = list(map(_address_of, map(_tensor_of, self._refs)))  # type: ignore[arg-type]
        except TypeError:  # a tensor is gone: its reference gives None
            now = []
        return now == self._addresses and all(
            map(operator.is_, map(operator.call, self._peeks), map(_tensor_of, self._placed_refs))
        )


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
        each = [w for w in watched if level == "always" and not (w.place and w.place.is_registered)]
        self._each = _Group(each)
        rotating = [] if level == "off" else list(watched)
        self._rotating = [_Group(rotating[at : at + PER_STEP]) for at in range(0, len(rotating), PER_STEP)]
        self._num_checks = 0  # that found nothing: one that does is the next, however often it is made
        self._whole_at = 0  # so many of them lie before the last look at everything
        self._registration = _registrations.count

    def settle(self) -> None:
        """Call once, when all captures are done and their externals are dropped."""
        for group in (self._each, *self._rotating):
            for watched in group.watched:
                watched.settle()

    def versions(self) -> list[int]:
        """Of the registered tensors: how often torch has seen each written in place, a device's replays apart."""
        registered = [w.alias for group in self._rotating for w in group.watched if w.place and w.place.is_registered]
        return [0 if tensor.is_inference() else tensor._version for tensor in registered]

    def check(self) -> None:
        """Look at what is due.

        Raises:
            TensorReboundError: its place holds another tensor.
            TensorDroppedError: nobody refers to it any more.
            AddressChangedError: it has other memory, or another layout.
        """
        if not self._rotating:
            return
        if self._each.watched and not self._each.is_as_read():
            self._look_at(self._each)
        if self._registration != _registrations.count:
            self.check_all()
            self._registration = _registrations.count
        else:
            rounds, at = divmod(self._num_checks, len(self._rotating))
            group = self._rotating[at]
            if not group.is_as_read():
                self._look_at(group)
            watched = group.watched[rounds % len(group.watched)]  # layout too: another one each round
            if watched.find_move(self._key) or watched.find_other_layout(self._key):
                self._look_at(group)
        self._num_checks += 1

    def check_all(self) -> None:
        """Look at everything; raises what `check` does."""
        for group in (self._each, *self._rotating):
            self._look_at(group)
        self._whole_at = self._num_checks

    def _look_at(self, group: _Group) -> None:
        """The whole look at each of ``group``; raises what `check` says."""
        for watched in group.watched:
            error = watched.find_move(self._key)
            is_layout = error is None
            error = error or watched.find_other_layout(self._key)
            if error is not None:
                error.context |= {"segment": watched.segment, "since": self._since(watched, is_layout=is_layout)}
                raise error
        group.read()

    def _since(self, watched: _Watched, *, is_layout: bool) -> str:
        """Between which checks of this plan it happened: the last that saw it right, and this one."""
        now = self._num_checks
        num_groups = len(self._rotating)
        at = next(at for at, group in enumerate(self._rotating) if watched in group.watched)
        group = self._rotating[at].watched
        last = self._whole_at
        if is_layout:  # its group's turn comes once in so many checks, and its own once in so many turns
            turn, every = at + num_groups * group.index(watched), num_groups * len(group)
        elif watched in self._each.watched:
            turn, every = 0, 1
        else:
            turn, every = at, num_groups
        if now > turn:
            last = max(last, (now - 1 - turn) // every * every + turn + 1)
        return f"between {f'check {last}' if last else 'its capture'} and check {now + 1} of this key"


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
