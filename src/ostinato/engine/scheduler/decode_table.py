"""The requests in decode as columns: one row each, changed for all of them at once.

A request that decodes gains one token a step, whatever else it is. So its counts are kept here, in arrays, from the
launch that gives it its first token until it ends or is preempted, and a step costs a few array operations. Tokens
are gathered in blocks and appended to the request's own list in turn, when it leaves, or when somebody looks
(`Request.books`). It leaves out who is scheduled and the pages' owner, both the scheduler's, which alone calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ostinato.engine.request import Request
from ostinato.engine.scheduler.decode_rows import DecodeRows, Roster

__all__ = ["DecodeTable"]

_BLOCK: Final = 128
"""Tokens that are gathered of a request at most: each read brings another share of the requests up to date."""

_NOBODY: Final = 0


class DecodeTable:
    """Rows of the requests in decode, oldest first.

    Args:
        max_num_reqs: how many there may be.
        max_num_tokens: of a request; one that has as many gets no other.
        page_size: tokens a page.
    """

    def __init__(self, *, max_num_reqs: int, max_num_tokens: int, page_size: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._page_size = page_size
        self._slots: dict[Request, int] = {}  # in running order: whoever joins is the youngest in decode
        self._free = list(range(max_num_reqs))
        self._owners: list[Request | None] = [None] * max_num_reqs
        self._roster: Roster | None = None  # of `_slots`
        self._rows: DecodeRows | None = None  # of the roster, as things stand
        self._shown: list[Request] = []  # brought up to date since the last change
        self._num_joined = _NOBODY
        self._serials = np.full(max_num_reqs, _NOBODY)  # a number for each that joins: whose row it is
        self._limits = np.zeros(max_num_reqs, dtype=np.int64)
        self._is_watched = np.zeros(max_num_reqs, dtype=np.bool_)
        self._is_plain = np.zeros(max_num_reqs, dtype=np.bool_)
        # One array, so that a step takes all of them in one go; free rows hold anything.
        self._columns = np.zeros((5, max_num_reqs), dtype=np.int64)
        self._num_computed, self._num_pending, self._next_slots, self._newest, self._capacities = self._columns
        self._counts = self._columns[:3]  # a launch adds one to each
        self._least_left = 0  # see `DecodeRows`, of the roster
        self._gathered = np.zeros((max_num_reqs, _BLOCK), dtype=np.int64)
        self._num_gathered = np.zeros(max_num_reqs, dtype=np.int64)
        self._turn = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, request: Request) -> bool:
        return request in self._slots

    @property
    def roster(self) -> Roster:
        """Everybody; the same object until somebody joins or leaves."""
        if self._roster is None:
            slots = np.fromiter(self._slots.values(), dtype=np.int64, count=len(self._slots))
            self._roster = Roster(
                requests=tuple(self._slots),
                slots=slots,
                serials=self._serials[slots],
                limits=self._limits[slots],
                is_watched=self._is_watched[slots],
                is_plain=self._is_plain[slots],
            )
            left = self._roster.limits - self._num_computed[slots]
            self._least_left = int(left.min(initial=self._max_num_tokens))
        return self._roster

    @property
    def rows(self) -> DecodeRows:
        """What a step would compute for everybody; the same object until something changes."""
        if self._rows is None:
            self._rows = self.rows_of(self.roster)
        return self._rows

    def rows_of(self, roster: Roster) -> DecodeRows:
        """`rows` of some, all of whom are here."""
        return DecodeRows(roster, self._columns.take(roster.slots, axis=1), self._least_left)

    def are_all_here(self, roster: Roster) -> bool:
        """Whether each row is still its request's."""
        return roster is self._roster or bool(self.is_here(roster).all())

    def is_here(self, roster: Roster) -> NDArray[np.bool_]:
        """[len(roster)] whose row is still their own."""
        result: NDArray[np.bool_] = self._serials[roster.slots] == roster.serials
        return result

    def join(self, request: Request) -> None:
        """Take a request whose next step is its newest token's: the youngest in decode."""
        assert request not in self._slots and request.is_decode, "its prompt is computed up to the newest token"
        slot = self._free.pop()
        self._num_joined += 1
        self._serials[slot] = self._num_joined
        self._limits[slot] = min(request.max_num_tokens, self._max_num_tokens)
        self._is_watched[slot] = request.is_watched
        self._is_plain[slot] = request.is_plain
        newest = (request.output_token_ids or request.prompt_token_ids)[-1]
        start, num_pages = request.num_computed_tokens, len(request.pages)
        next_slot = request.pages[-1] * self._page_size + start - (num_pages - 1) * self._page_size
        columns = start, request.num_pending_tokens, next_slot, newest, num_pages * self._page_size
        self._columns[:, slot] = columns
        self._num_gathered[slot] = 0
        self._slots[request], self._owners[slot] = slot, request
        self._shown.append(request)
        self._roster = self._rows = None

    def leave(self, request: Request) -> None:
        """Let go of a request, which has all its tokens and counts from here on. Others are ignored."""
        if request not in self._slots:
            return
        if request.books is not None:
            self.bring_up_to_date(request)
        self._shown.remove(request)
        slot = self._slots.pop(request)
        self._serials[slot], self._owners[slot] = _NOBODY, None
        self._free.append(slot)
        self._roster = self._rows = None

    def add_pages(self, roster: Roster, at: NDArray[np.int64], pages: Sequence[int]) -> None:
        """Note one more page of each at the places ``at`` of ``roster``: they are here, and their pages full."""
        for index, page in zip(at.tolist(), pages, strict=True):
            roster.requests[index].pages.append(page)
        slots = roster.slots[at]
        self._capacities[slots] += self._page_size
        self._next_slots[slots] = np.array(pages) * self._page_size
        self._rows = None

    def launch(self, decodes: DecodeRows) -> tuple[Request, ...]:
        """Each of ``decodes`` that is still here had its newest token computed, and has one more pending.

        Returns:
            Those for whom that cannot be, in progress but not where ``decodes`` says. Then nothing was changed.
        """
        if decodes is not self._rows:
            slots = decodes.roster.slots
            is_due = self.is_here(decodes.roster) & (self._num_computed[slots] == decodes.starts)
            if not is_due.all():
                others = decodes.roster.take((~is_due).nonzero()[0]).requests
                if lost := tuple(request for request in others if not request.is_finished):
                    return lost
                decodes = decodes.take(is_due.nonzero()[0])
        self._change()
        self._least_left -= 1
        if decodes.roster is self._roster:
            self._counts += 1
        else:
            self._counts[:, decodes.roster.slots] += 1
        return ()

    def slots_of(self, requests: Iterable[Request]) -> NDArray[np.int64]:
        """The rows of some, all of whom are here."""
        return np.array([self._slots[request] for request in requests], dtype=np.int64)

    def read(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """The oldest pending token of each of the rows ``slots`` is known now."""
        self._change()
        places = self._num_gathered[slots]
        self._gathered[slots, places] = token_ids
        self._newest[slots] = token_ids
        if self._roster is not None and slots is self._roster.slots:
            self._num_pending -= 1
            self._num_gathered += 1
        else:
            self._num_pending[slots] -= 1
            self._num_gathered[slots] += 1
        self._turn = (self._turn + 1) % _BLOCK
        for owner in self._owners[self._turn :: _BLOCK]:
            if owner is not None:
                self.bring_up_to_date(owner)

    def bring_up_to_date(self, request: Request) -> None:
        """Make the request's own record what this table knows."""
        slot = self._slots[request]
        request.books = None
        self._shown.append(request)
        num_computed, num_pending = self._counts[:2, slot].tolist()
        new = self._gathered[slot, : self._num_gathered[slot]].tolist()
        self._num_gathered[slot] = 0
        request.note_progress(new, num_computed_tokens=num_computed, num_pending_tokens=num_pending)

    def _change(self) -> None:
        """From here on the table is ahead of those that were shown."""
        self._rows = None
        for request in self._shown:
            request.books = self
        self._shown.clear()
