"""`Slot`: the declaration of one fixed-address tensor that a graph reads.

Says its shape, dtype, which axis of the batch it grows with, and what stands in the rows past the live
size. No memory here: `static` allocates.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from ostinato.errors import ConfigError

__all__ = ["NUM_REQS", "NUM_TOKENS", "Slot", "Tail"]

NUM_TOKENS = "num_tokens"
NUM_REQS = "num_reqs"


class Tail(StrEnum):
    """What a step leaves in the rows between the live size and the bucket."""

    KEEP = "keep"
    """Whatever bytes stand there. Only for values that nothing is indexed with and that no row reads of another."""
    ZERO = "zero"
    FILL = "fill"


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One input of a captured callable.

    Args:
        shape: the largest shape but for the batch axis, which is None: ``(None, 64)``. A shape without None
            is the same in every bucket.
        dtype: of the buffer; inputs must match it exactly.
        axis: what the None dimension counts: "num_tokens" or "num_reqs".
        extra: rows the buffer has beyond the count (1 for cumulative offsets).
        tail: policy for the rows past the live size.
        fill: the value for ``tail="fill"``.
        valid_range: half-open range of legal values if the slot is used as an index; the tail is checked
            against it, because a padded row is executed like any other.

    Raises:
        ConfigError: the axis stands elsewhere than first, is missing, or the tail breaks ``valid_range``.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    axis: str | None = NUM_TOKENS
    extra: int = 0
    tail: Tail | str = Tail.ZERO
    fill: int | float = 0
    valid_range: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tail", Tail(self.tail))
        if None not in self.shape:
            object.__setattr__(self, "axis", None)
        elif self.shape.count(None) != 1 or self.shape[0] is not None:
            raise ConfigError(f"slot shape {self.shape}: the batch axis must be the first dimension, and the only None")
        elif self.axis not in (NUM_TOKENS, NUM_REQS):
            raise ConfigError(f"slot axis {self.axis!r}", fix=f"use {NUM_TOKENS!r} or {NUM_REQS!r}")
        if self.valid_range is not None and self.axis is not None:
            low, high = self.valid_range
            if self.tail is Tail.KEEP:
                raise ConfigError(
                    "an index slot may not keep its tail: stale indices of a larger batch would be executed",
                    fix="use tail='zero' or tail='fill'",
                )
            value = 0 if self.tail is Tail.ZERO else self.fill
            if not low <= value < high:
                raise ConfigError(
                    f"the tail value {value} of an index slot is outside its valid range [{low}, {high})",
                    fix="fill with an index that is safe to read and write, such as a row of the null page",
                )

    def rows(self, sizes: dict[str, int]) -> int | None:
        """Rows of the buffer at ``sizes`` (axis -> count), or None for a fixed shape."""
        return None if self.axis is None else sizes[self.axis] + self.extra

    def describe(self) -> str:
        """``[num_tokens, 64] float32``, for messages."""
        dims = [f"{self.axis}{f'+{self.extra}' if self.extra else ''}" if d is None else str(d) for d in self.shape]
        return f"[{', '.join(dims)}] {str(self.dtype).removeprefix('torch.')}"
