"""State and random generators as they were before a run that nobody asked for, and alike in several such runs.

For whatever runs a callable more often than its user does: qualification, the shadow, measuring, a change of sizes.
Copies lie on the device, so a snapshot costs the bytes of what it copies once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch

from ostinato.runtime.capture import GeneratorLog, GeneratorStates

__all__ = ["Rows", "Snapshot", "generators_kept", "seeded", "state_kept"]

Rows = tuple[torch.Tensor, torch.Tensor | None]
"""A state tensor and the rows of it that count, [num_rows] int64; None: all."""

_SEED: Final = 20261129


class Snapshot:
    """Copies of named tensors, or of rows of them.

    Args:
        state: the live ones; they are read now and written by `restore`.
    """

    def __init__(self, state: Mapping[str, torch.Tensor | Rows]) -> None:
        self._state = {name: (item, None) if isinstance(item, torch.Tensor) else item for name, item in state.items()}
        self.saved = {
            name: tensor.clone() if rows is None else tensor[rows] for name, (tensor, rows) in self._state.items()
        }

    def restore(self) -> None:
        """Write the copies back."""
        with torch.inference_mode():  # some of them may have been made in it
            for name, (tensor, rows) in self._state.items():
                if rows is None:
                    tensor.copy_(self.saved[name])
                else:
                    tensor.index_copy_(0, rows, self.saved[name])


@contextmanager
def state_kept(state: Mapping[str, torch.Tensor | Rows]) -> Iterator[None]:
    """Put ``state`` back, whatever ran meanwhile."""
    original = Snapshot(state)
    try:
        yield
    finally:
        original.restore()


@contextmanager
def generators_kept(
    device: torch.device, own: GeneratorLog, *, begin_at: GeneratorStates | None = None
) -> Iterator[None]:
    """Put the random generators of the host and of ``device`` back, and the user's own, whatever ran meanwhile.

    Args:
        own: the user's; those that are met meanwhile are put back as well.
        begin_at: where they begin; by default where they are.
    """
    original = GeneratorStates(device)
    with own.kept():
        try:
            if begin_at is not None:
                begin_at.restore()
            yield
        finally:
            original.restore()


@contextmanager
def seeded(device: torch.device, own: GeneratorLog) -> Iterator[None]:
    """Random generators of the host and of ``device``, and the user's own, start alike in each run, and are put back
    afterwards."""
    with generators_kept(device, own):
        torch.default_generator.manual_seed(_SEED)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(_SEED)
        for number, generator in enumerate(own.entries(), start=1):  # no two draw the same numbers
            generator.manual_seed(_SEED + number)
        yield
