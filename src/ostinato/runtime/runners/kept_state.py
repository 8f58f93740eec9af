"""State and random generators as they were before a run that nobody asked for, and alike in several such runs.

For whatever runs a callable more often than its user does: qualification, the shadow, measuring, a change of sizes.
Copies lie on the device, so a snapshot costs the bytes of what it copies once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch

__all__ = ["Rows", "Snapshot", "generator_states", "generators_kept", "seeded", "state_kept"]

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


def generator_states(device: torch.device) -> list[torch.Tensor]:
    """The random generators of the host and of ``device``, as they are now."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


@contextmanager
def generators_kept(device: torch.device, *, begin_at: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """Put the random generators of the host and of ``device`` back, whatever ran meanwhile.

    Args:
        begin_at: where they begin, from `generator_states`; by default where they are.
    """
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        if begin_at:
            torch.set_rng_state(begin_at[0])
        if len(begin_at) > 1:
            torch.cuda.set_rng_state(begin_at[1], device)
        yield


@contextmanager
def seeded(device: torch.device) -> Iterator[None]:
    """Random generators of the host and of ``device`` start alike in each run, and are put back afterwards."""
    with generators_kept(device):
        torch.default_generator.manual_seed(_SEED)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(_SEED)
        yield
