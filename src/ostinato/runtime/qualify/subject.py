"""`Subject`: what qualification needs of a `Graphed`, and the default batches that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.runtime.buffers import Place
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.qualify.cases import RandomCases
from ostinato.runtime.runners import CapturedKeys, MadeUpRuns, WrappedCallable, seeded

__all__ = ["Subject", "integer_ranges", "written_state"]

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One callable and its graphs, handed over by the facade."""

    backend: CaptureBackend
    runs: MadeUpRuns
    """Makes metadata for keys, and captures one once more."""
    captured: CapturedKeys
    cut: Callable[[Any, int], Any]
    """The live part of outputs with so many live tokens, as views."""
    ranges: Ranges
    """See `integer_ranges`."""
    is_bitwise: bool
    """Whether a replay must have the bits of eager: nothing compiles, and the device computes alike each time."""

    @property
    def wrapped(self) -> WrappedCallable:
        """The callable on its static buffers."""
        return self.runs.wrapped

    def state(self) -> dict[str, torch.Tensor]:
        """See `written_state`; as it lies now."""
        places = (*self.wrapped.state_places(), *self.wrapped.own_places())
        return written_state(places, arena=self.wrapped.buffers.arena)

    def seeded(self) -> AbstractContextManager[None]:
        """Every random generator that the callable may draw from starts alike in each run, and is put back."""
        return seeded(self.wrapped.device, self.backend.generators)

    def random_cases(self, seed: int) -> RandomCases:
        """The default batches."""
        return RandomCases(self.runs, cut=self.cut, state=self.state(), ranges=self.ranges, seed=seed)

    def untried(self) -> list[str]:
        """What the default batches leave out."""
        notes = [
            f"slot {name} declares no valid_range, so it was filled with zeros only"
            for name, slot in self.wrapped.buffers.slots.items()
            if slot.valid_range is None and name not in self.ranges and _counts(slot.dtype)
        ]
        if self.runs.is_prepared:
            notes.append("runs without padding were not compared: prepare= makes metadata for padded sizes alone")
        return notes


def integer_ranges(names: Iterable[str], tensors: Sequence[torch.Tensor]) -> dict[str, tuple[int, int]]:
    """Half-open ranges of the integers in an example's tensors: values that the callable can take."""
    return {
        name: (int(tensor.min()), int(tensor.max()) + 1)
        for name, tensor in zip(names, tensors, strict=False)
        if tensor.numel() and _counts(tensor.dtype)
    }


def written_state(places: Iterable[Place], *, arena: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a callable may write, as far as it can be seen: the tensors of ``places`` that are no parameters and not
    in the static ``arena``."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for place in places:
        tensor = place.tensor
        is_input = tensor.untyped_storage().data_ptr() == arena.untyped_storage().data_ptr()
        if tensor.numel() and not isinstance(tensor, torch.nn.Parameter) and not is_input:
            found.setdefault(tensor.data_ptr(), (place.name, tensor))
    return dict(found.values())


def _counts(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
