"""`MadeMemory`: which memory the segments of one session have made, so that every replay of the plan rewrites it.

Known by the ops that were seen to produce it and, where code allocates past the dispatcher, by the pool it lies in. It
counts only as long as a graph keeps the pool and nobody else captures into it: a plan that is captured inside a break
is given memory of the same pool, at addresses that may have been ours. What is in doubt counts as not made; then its
users hold it. Pure logic; used by the CUDA backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ostinato.runtime.capture.pool_view import PoolView

__all__ = ["GraphPool", "MadeMemory"]


class GraphPool(Protocol):
    """A pool that graphs are captured into, one session after the other."""

    @property
    def handle(self) -> tuple[int, int]:
        """Its id, as torch has it."""
        ...

    num_graphs: int
    """Those that keep its memory, an open one too."""
    last_session: object
    """Who captured into it last."""


class MadeMemory:
    """Of one session.

    Args:
        view_of: a view of the pool, from now on; None where the ops that are seen make everything.
    """

    def __init__(self, view_of: Callable[[tuple[int, int]], PoolView | None]) -> None:
        self._view_of = view_of
        self._pool: GraphPool | None = None
        self._view: PoolView | None = None
        self.seen: set[int] = set()
        """Addresses of what ops of the segments were seen to produce. While one is open, none is in doubt."""

    def enter(self, pool: GraphPool) -> None:
        """A segment begins in ``pool``. Call before any of its ops."""
        if pool is self._pool and pool.last_session is self:
            return
        self._pool, pool.last_session = pool, self
        self.seen = set()  # they were of another pool, or perhaps given to others since
        self._view = self._view_of(pool.handle)

    def forget(self) -> None:
        """A segment was thrown away: no replay rewrites what it made."""
        self._pool = None

    def has(self, address: int) -> bool:
        """Whether the memory at ``address``, of a tensor that is alive, was made by the segments."""
        pool = self._pool
        if pool is None or pool.num_graphs == 0 or pool.last_session is not self:
            return False
        return address in self.seen or (self._view is not None and self._view.is_new(address))
