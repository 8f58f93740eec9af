"""What a plan's graphs use and did not make: inputs, weights, tables, whatever a closure held.

A graph holds raw addresses. So of each such memory the log keeps an alias, which keeps it from being reused, and a
weak reference to the caller's own tensor, by which guards see that it moved or was dropped. Filled while ops are
watched; kernels launched past the dispatcher are not seen. Used by both backends.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

__all__ = ["External", "ExternalLog"]


@dataclass(frozen=True, slots=True, eq=False)
class External:
    """One memory, under the first tensor through which an op of the plan used it."""

    tensor: weakref.ref[torch.Tensor]
    """The caller's tensor."""
    alias: torch.Tensor
    """Ours: the same memory and layout as at capture."""
    op: str
    """Who used it first: an op, or a break."""
    at: str
    """``file:line`` of the caller's frame."""
    segment: int
    """Which segment of the plan used it first, from 0 and without empty ones; of a break, the segment before which it
    runs."""
    is_break: bool = False
    """Whether a break used it first, between two segments."""

    @property
    def first_use(self) -> str:
        """The segment or the break, as messages name it."""
        return f"{self.op} before {self.segment}" if self.is_break else str(self.segment)

    @property
    def address(self) -> int:
        """Of the memory, at capture."""
        return self.alias.untyped_storage().data_ptr()


class ExternalLog:
    """The externals of one session, each memory once."""

    def __init__(self) -> None:
        self._by_address: dict[int, External] = {}
        self._num_segments = 0

    def note(self, tensor: torch.Tensor, op: str, at: str, *, is_break: bool = False) -> None:
        """Enter the memory of ``tensor``, unless it is known already or empty."""
        address = tensor.untyped_storage().data_ptr()
        if address and address not in self._by_address:
            self._by_address[address] = External(
                weakref.ref(tensor), tensor.detach(), op, at, self._num_segments, is_break
            )

    def end_segment(self) -> None:
        """A segment that holds something has ended: what is noted from here on belongs to the next."""
        self._num_segments += 1

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the memory is entered."""
        return tensor.untyped_storage().data_ptr() in self._by_address

    def entries(self) -> list[External]:
        """All, in the order of their first use."""
        return list(self._by_address.values())
