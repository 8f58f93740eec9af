"""The decodes of one step as columns, and who they are. Values only; see `ScheduledBatch`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ostinato.engine.request import Request

__all__ = ["DecodeRows", "Roster"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Roster:
    """Some requests in decode, oldest first. Steps of the same requests share one, so what is made of it can be kept.

    Attributes:
        requests: each once.
        slots: [num] the row of each in the scheduler's table.
        serials: [num] by which the table tells whether the row is still theirs.
        limits: [num] tokens that a request may have: `Request.max_num_tokens`, or what the model or the cache holds.
        is_watched: [num] `Request.is_watched`.
        is_plain: [num] `Request.is_plain`.
    """

    requests: tuple[Request, ...]
    slots: NDArray[np.int64]
    serials: NDArray[np.int64]
    limits: NDArray[np.int64]
    is_watched: NDArray[np.bool_]
    is_plain: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.requests)

    def take(self, at: NDArray[np.int64]) -> Roster:
        """Those at the places ``at``."""
        return Roster(
            requests=tuple([self.requests[i] for i in at.tolist()]),
            slots=self.slots[at],
            serials=self.serials[at],
            limits=self.limits[at],
            is_watched=self.is_watched[at],
            is_plain=self.is_plain[at],
        )

    @cached_property
    def are_all_plain(self) -> bool:
        """Whether all are plain."""
        return bool(self.is_plain.all())

    @cached_property
    def has_watched(self) -> bool:
        """Whether somebody is watched."""
        return bool(self.is_watched.any())


@dataclass(frozen=True, eq=False)
class DecodeRows:
    """One new token for each of a roster, as things stood when the step was scheduled.

    Attributes:
        roster: whose rows they are.
        columns: [5, num] int64: what the properties name, in their order. Nobody writes to it.
        least_left: nobody has fewer tokens left than that, from ``starts`` to the limit.
    """

    roster: Roster
    columns: NDArray[np.int64]
    least_left: int

    def __len__(self) -> int:
        return len(self.roster.requests)

    def take(self, at: NDArray[np.int64]) -> DecodeRows:
        """Those at the places ``at``."""
        return DecodeRows(self.roster.take(at), self.columns[:, at], self.least_left)

    @property
    def starts(self) -> NDArray[np.int64]:
        """[num] tokens computed before the step; the new token stands there."""
        return self._column(0)

    @property
    def num_pending(self) -> NDArray[np.int64]:
        """[num] tokens that the device knows and the host does not; the new token is among them, if there are any."""
        return self._column(1)

    @property
    def slots(self) -> NDArray[np.int64]:
        """[num] slot of the cache for the new token, in the last page of each, where that has room."""
        return self._column(2)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """[num] the newest token that the host knows: the new one, if none is pending."""
        return self._column(3)

    @property
    def capacities(self) -> NDArray[np.int64]:
        """[num] tokens that the pages of each hold."""
        return self._column(4)

    def _column(self, number: int) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.columns[number]
        return column

    @property
    def are_full(self) -> NDArray[np.bool_] | None:
        """[num] who has all the tokens that it may have, pending ones too; None for nobody."""
        return self.within(1)

    def within(self, num_tokens: int) -> NDArray[np.bool_] | None:
        """[num] who has at most so many tokens left, from ``starts`` to the limit; None for nobody."""
        if self.least_left > num_tokens:
            return None
        are_near: NDArray[np.bool_] = self.starts + num_tokens >= self.roster.limits
        return are_near if are_near.any() else None
