"""`PoolView`: which memory of a graph pool was allocated after a given moment, by what the device's allocator shows.

A compiler's code allocates past torch's dispatcher, where no watch sees it. The allocator sees all. So a view notes
which blocks of the pool are in use when it is made; memory of the pool that lies in none of these came later. A block
that was in use then and has been freed and given out again since counts as old: that errs to the safe side.
It looks again only for an address that it has never seen. Pure logic over what `torch.cuda.memory_snapshot` returns;
torch takes the allocator's lock for that and calls nothing of the device's, so it may be asked in the middle of a
capture. Where the answer is not of the form that is known, nothing counts as new. Asked by `MadeMemory`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

__all__ = ["PoolView", "Snapshot"]

Snapshot = Sequence[dict[str, Any]]
"""The allocator's segments, each with the pool that it belongs to and with its blocks."""

_FREE: Final = "inactive"


class _Ranges:
    """Ranges of addresses that do not overlap, by their start."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [start for start, _ in self._ranges]

    def __contains__(self, address: int) -> bool:
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._ranges[at][1]


class PoolView:
    """A pool as its segments and blocks are seen, from now on.

    Args:
        pool: its id: `torch.cuda.graph_pool_handle`.
        look: the allocator's segments as they are when it is called, those of all pools.
    """

    def __init__(self, pool: tuple[int, int], look: Callable[[], Snapshot]) -> None:
        self._pool = tuple(pool)
        self._look = look
        self._is_blind = False
        self._elsewhere: set[int] = set()  # addresses that are no memory of the allocator's
        self._inside = self._outside = self._old = _Ranges(())
        self.num_looks = 0
        """How often the allocator was asked."""
        segments = self._look_again()
        try:
            self._old = _Ranges(
                (block["address"], block["address"] + block["size"])
                for segment in segments
                if self._is_inside(segment)
                for block in segment["blocks"]
                if block["state"] != _FREE
            )
        except (LookupError, TypeError):
            self._is_blind = True

    def is_new(self, address: int) -> bool:
        """Whether ``address``, of a tensor that is alive, lies in memory of the pool that was allocated since."""
        if address == 0 or self._is_blind or address in self._elsewhere or address in self._outside:
            return False
        if address not in self._inside:  # memory that the allocator took since, or none of its own
            self._look_again()
            if address not in self._inside:
                self._elsewhere.add(address)
                return False
        return address not in self._old

    def _look_again(self) -> Snapshot:
        self.num_looks += 1
        try:
            segments = self._look()
            ours = [_range(segment) for segment in segments if self._is_inside(segment)]
            others = [_range(segment) for segment in segments if not self._is_inside(segment)]
            self._inside, self._outside = _Ranges(ours), _Ranges(others)
        except (RuntimeError, LookupError, TypeError):  # an allocator that tells nothing, or something else
            self._is_blind = True
            return ()
        return segments

    def _is_inside(self, segment: dict[str, Any]) -> bool:
        return tuple(segment["segment_pool_id"]) == self._pool


def _range(segment: dict[str, Any]) -> tuple[int, int]:
    return segment["address"], segment["address"] + segment["total_size"]
