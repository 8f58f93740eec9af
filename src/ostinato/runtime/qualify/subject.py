"""`Subject`: what qualification needs of a `Graphed`, and the default batches that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.runtime.buffers import Place, Sizes, StaticBuffers
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.qualify.cases import RandomCases
from ostinato.runtime.runners import Call, CapturedPlan

__all__ = ["Subject", "integer_ranges", "written_state"]

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One captured callable, handed over by the facade."""

    backend: CaptureBackend
    buffers: StaticBuffers
    plans: Mapping[GraphKey, CapturedPlan]
    sizes_of: Callable[[GraphKey], Sizes]
    bind: Callable[[GraphKey], Call]
    """The callable on the static buffers at a key's padded sizes."""
    call: Callable[[Mapping[str, torch.Tensor]], Any]
    """The callable on named tensors of live size."""
    cut: Callable[[Any, int], Any]
    """The live part of outputs with so many live tokens, as views."""
    prepare: Callable[[GraphKey], None] | None
    capture: Callable[[GraphKey], CapturedPlan]
    """Captures a key once more, on what the buffers hold; the plan is the caller's to close."""
    check_guards: Callable[[GraphKey], None]
    state: Mapping[str, torch.Tensor]
    """See `written_state`."""
    ranges: Ranges
    """See `integer_ranges`."""
    is_bitwise: bool
    """Whether a replay must have the bits of eager: nothing compiles, and the device computes alike each time."""

    def random_cases(self, seed: int) -> RandomCases:
        """The default batches."""
        return RandomCases(
            buffers=self.buffers,
            sizes_of=self.sizes_of,
            prepare=self.prepare or (lambda key: None),
            call=self.call,
            cut=self.cut,
            state=self.state,
            ranges=self.ranges,
            compares_exact=self.prepare is None,
            seed=seed,
        )

    def untried(self) -> list[str]:
        """What the default batches leave out."""
        notes = [
            f"slot {name} declares no valid_range, so it was filled with zeros only"
            for name, slot in self.buffers.slots.items()
            if slot.valid_range is None and name not in self.ranges and _counts(slot.dtype)
        ]
        if self.prepare is not None:
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
