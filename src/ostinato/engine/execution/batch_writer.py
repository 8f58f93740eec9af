"""Writes a scheduled batch into the host side of a step's inputs, every row of it, tails too.

Keeps each running request's page numbers and settings in tables, so that a step's decodes cost a few array operations;
only those that got a page, and prompts, are looked at one by one. What a memory still holds of its last write is left
there: rows of page numbers that have not changed, and what all steps of the same plain decodes have in common. A token
that was sampled in the step before and not read yet is fed on the device: its row says where it lies. Called by the
executor, once a step and in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ostinato.engine.execution.sampling_writer import SamplingWriter
from ostinato.engine.paging import pages_for
from ostinato.engine.request import Request
from ostinato.engine.sampling import RowToBuild
from ostinato.engine.scheduler import DecodeRows, Roster, ScheduledBatch
from ostinato.errors import PageIntegrityError
from ostinato.runtime import HostSlots

__all__ = ["BatchWriter"]

_Ints = NDArray[np.int64]

_NOBODY: Final = -1


class BatchWriter:
    """Remembers which requests were in the last batch, and their pages.

    Args:
        max_num_reqs: requests of one batch.
        max_model_len: tokens that a request may hold.
        page_size: tokens a page.
        seed: of the random numbers for requests without a seed of their own.
    """

    def __init__(self, *, max_num_reqs: int, max_model_len: int, page_size: int, seed: int = 0) -> None:
        self._page_size = page_size
        self._tables = np.zeros((max_num_reqs, pages_for(max_model_len, page_size)), dtype=np.int32)
        self._capacities = np.zeros(max_num_reqs, dtype=np.int64)  # tokens that the pages of each row hold
        self._num_writes = 0
        self._changed_at = np.zeros(max_num_reqs, dtype=np.int64)  # the write in which the table's row changed last
        self._last_rows = np.zeros(0, dtype=np.int64)  # of the last batch
        self._places = np.zeros(max_num_reqs, dtype=np.int64)  # 1 + place in the last batch, by row; 0 for none
        self._ones = np.ones(max_num_reqs, dtype=np.int64)
        self._counting = np.arange(max_num_reqs + 1)
        self._entries: dict[Request, _Entry] = {}
        self._free = list(range(max_num_reqs))
        self._known: tuple[Roster, _Ints] | None = None  # the decodes of the last batch, and their rows
        self._sampling = SamplingWriter(max_num_reqs=max_num_reqs, seed=seed)

    def write(self, host: HostSlots, batch: ScheduledBatch) -> list[RowToBuild]:
        """Fill ``host``, tensors of the slots at the padded sizes (see `batch_slots`).

        Returns:
            Rows of the token counts that must be built before the step is launched.

        Raises:
            PageIntegrityError: a token has no page.
        """
        self._num_writes += 1
        arrays, kept = host.arrays, host.kept
        if not isinstance(kept, _Kept) or kept.writer is not self:
            kept = _Kept(self, num_rows=len(arrays["block_tables"]))
        host.kept = None  # unless this write comes to its end
        num_steady = self._num_steady(batch)
        if not num_steady:
            self._places.fill(0)
            self._places[self._last_rows] = self._counting[1 : len(self._last_rows) + 1]
        table_rows, ends, positions, slots, lengths, token_ids, num_pending = self._columns(batch)
        _fill(arrays["positions"], positions, tail=0)
        _fill(arrays["slot_mapping"], slots, tail=0)
        _fill(arrays["seq_lens"], ends, tail=0)
        self._write_tables(arrays["block_tables"], kept, table_rows)
        to_build: list[RowToBuild] = []
        if not num_steady or num_steady != kept.num_steady:
            is_fed = num_pending > 0
            sources = self._counting[1 : num_steady + 1] if num_steady else self._places[table_rows] * is_fed
            assert np.array_equal(sources > 0, is_fed), "a pending token was sampled in the step before"
            self._write_rows(arrays, lengths, token_ids, sources, num_tokens=batch.num_tokens)
            requests = batch.sampling
            at = slice(len(requests))
            to_build = self._sampling.write(arrays, requests, table_rows[at], ends[at], sources[at])
        self._last_rows = table_rows
        kept.num_steady, kept.written_at = num_steady, self._num_writes
        host.kept = kept
        return to_build

    def _num_steady(self, batch: ScheduledBatch) -> int:
        """How many plain decodes the step is of, if it is of those of the step before and of nobody else; or 0.

        Steps of as many differ in positions and pages alone: each row is fed from its own of the step before.
        """
        decodes, known = batch.decodes, self._known
        if decodes is None or batch.others or known is None:
            return 0
        roster, rows = known
        if decodes.roster is not roster or self._last_rows is not rows or not roster.are_all_plain:
            return 0
        return len(rows) if np.count_nonzero(decodes.num_pending) == len(rows) else 0

    def _write_tables(self, tables: NDArray[np.int32], kept: _Kept, table_rows: _Ints) -> None:
        """The rows of page numbers that ``tables`` does not hold as they are now."""
        num_reqs = len(table_rows)
        is_stale = self._changed_at[table_rows] > kept.written_at
        if kept.table_rows is not table_rows:
            held = kept.held_rows[:num_reqs]
            is_stale |= held != table_rows
            held[:] = kept.table_rows = table_rows
        at = is_stale.nonzero()[0]
        tables[at] = self._tables[table_rows[at]]  # whole rows, whose unused ends are zero
        if num_reqs < kept.num_reqs:
            tables[num_reqs : kept.num_reqs] = 0
            kept.held_rows[num_reqs : kept.num_reqs] = _NOBODY
        kept.num_reqs = num_reqs

    def _write_rows(
        self,
        arrays: Mapping[str, NDArray[Any]],
        lengths: _Ints,
        token_ids: _Ints,
        sources: _Ints,
        *,
        num_tokens: int,
    ) -> None:
        """Which rows are whose, and where their tokens come from."""
        num_reqs = len(lengths)
        if num_tokens == num_reqs:
            last_rows, query_ends, token_sources = self._counting[:num_reqs], self._counting[1 : num_reqs + 1], sources
        else:
            query_ends = np.cumsum(lengths)
            last_rows = query_ends - 1
            token_sources = np.zeros(num_tokens, dtype=np.int64)
            token_sources[last_rows] = sources
        _fill(arrays["input_ids"], token_ids * (token_sources == 0), tail=0)
        _fill(arrays["feed_rows"], token_sources, tail=0)
        _fill(arrays["sampled_rows"], last_rows, tail=0)
        query_start = arrays["query_start"]
        query_start[0] = 0
        _fill(query_start[1:], query_ends, tail=num_tokens)

    def _columns(self, batch: ScheduledBatch) -> tuple[NDArray[Any], ...]:
        """The batch as columns; brings the page table up to date.

        Returns:
            table rows and tokens after the step [num_reqs], positions and slots of the cache [num_tokens], numbers of
            tokens [num_reqs], their ids [num_tokens; any for one that is fed], and more than 0 for whose newest token
            is fed [num_reqs].

        Raises:
            PageIntegrityError: a token has no page.
        """
        parts = []
        if batch.decodes is not None:
            parts.append(self._decode_columns(batch, batch.decodes))
        if batch.others:
            parts.append(self._other_columns(batch))
        return parts[0] if len(parts) == 1 else tuple(np.concatenate(each) for each in zip(*parts, strict=True))

    def _decode_columns(self, batch: ScheduledBatch, decodes: DecodeRows) -> tuple[NDArray[Any], ...]:
        """Of the requests in decode, without a look at each."""
        if self._known is not None and self._known[0] is decodes.roster:
            rows = self._known[1]
        else:
            rows = np.array([self._entry(request, batch).row for request in decodes.roster.requests])
            self._known = decodes.roster, rows
        starts, slots, capacities = decodes.starts, decodes.slots, decodes.capacities
        is_short = starts >= capacities
        if np.count_nonzero(is_short):
            first = int(is_short.argmax())
            raise _no_slot(decodes.roster.requests[first], int(starts[first]))
        at = (self._capacities[rows] != capacities).nonzero()[0]
        if len(at):
            changed = rows[at]
            known, now = self._capacities[changed], capacities[at]
            for index in at[known + self._page_size != now].tolist():  # more than the page of the new token
                self._take_pages(int(rows[index]), decodes.roster.requests[index])
            self._tables[changed, now // self._page_size - 1] = slots[at] // self._page_size
            self._changed_at[changed] = self._num_writes
            self._capacities[changed] = now
        return rows, starts + 1, starts, slots, self._ones[: len(rows)], decodes.token_ids, decodes.num_pending

    def _other_columns(self, batch: ScheduledBatch) -> tuple[NDArray[Any], ...]:
        """Of the other requests, one by one."""
        table_rows: list[int] = []
        starts: list[int] = []
        lengths: list[int] = []
        num_pending: list[int] = []
        ids = np.zeros(batch.num_tokens - batch.num_decodes, dtype=np.int64)  # a pending token's place is left at 0
        at = 0
        for request, start, num_new, samples, _ in batch.others:
            entry = self._entry(request, batch)
            capacity = len(request.pages) * self._page_size
            if self._capacities[entry.row] != capacity:
                self._take_pages(entry.row, request)
            if start + num_new > capacity:
                raise _no_slot(request, start + num_new - 1)
            known = request.prompt_ids[start : start + num_new]
            ids[at : at + len(known)] = known
            if len(known) < num_new:  # it has output: its pages were taken back
                output = request.token_slice(start + len(known), num_new - len(known))
                ids[at + len(known) : at + len(known) + len(output)] = output
            at += num_new
            is_fed = samples and request.num_pending_tokens > 0
            table_rows.append(entry.row)
            starts.append(start)
            lengths.append(num_new)
            num_pending.append(int(is_fed))
        rows, firsts, counts = (np.array(each, dtype=np.int64) for each in (table_rows, starts, lengths))
        ends = firsts + counts
        owners = np.repeat(rows, counts)
        positions = np.repeat(ends - np.cumsum(counts), counts) + np.arange(len(owners))
        page_numbers = positions // self._page_size
        pages = self._tables[owners, page_numbers].astype(np.int64)
        slots = pages * self._page_size + positions - page_numbers * self._page_size
        return rows, ends, positions, slots, counts, ids, np.array(num_pending, dtype=np.int64)

    def _take_pages(self, row: int, request: Request) -> None:
        """Add the pages that a request got since its row was written."""
        num_known, num_pages = int(self._capacities[row]) // self._page_size, len(request.pages)
        self._tables[row, num_known:num_pages] = request.pages[num_known:]
        self._changed_at[row] = self._num_writes
        self._capacities[row] = num_pages * self._page_size

    def _entry(self, request: Request, batch: ScheduledBatch) -> _Entry:
        """What is known of a request."""
        entry = self._entries.get(request)
        if entry is None or entry.num_preemptions != request.num_preemptions:
            entry = self._enter(request, batch)
        return entry

    def _enter(self, request: Request, batch: ScheduledBatch) -> _Entry:
        """Start a request's pages anew: it is new here, or came back with other pages after a preemption."""
        known = self._entries.pop(request, None)
        if known is None and not self._free:
            self._forget_others(batch)
        if known is None:
            row = self._free.pop()
            self._places[row] = 0
            self._sampling.enter(row, request)
        else:
            row = known.row
        self._tables[row] = 0
        self._capacities[row] = 0  # all of them follow in the same write
        entry = self._entries[request] = _Entry(row, request.num_preemptions)
        return entry

    def _forget_others(self, batch: ScheduledBatch) -> None:
        """Give back the rows of requests that are not in ``batch``."""
        self._known = None
        present = set(batch.requests)
        for request in [r for r in self._entries if r not in present]:
            self._free.append(self._entries.pop(request).row)


class _Kept:
    """What a writer left in one memory: see `HostSlots.kept`."""

    __slots__ = ("held_rows", "num_reqs", "num_steady", "table_rows", "writer", "written_at")

    def __init__(self, writer: BatchWriter, *, num_rows: int) -> None:
        self.writer = writer
        self.written_at = 0  # by the writer's count
        self.num_reqs = num_rows  # rows of page numbers beyond are zero
        self.held_rows = np.full(num_rows, _NOBODY)  # the row of the writer's table that each holds
        self.table_rows: _Ints | None = None  # the array that was copied there
        self.num_steady = 0  # see `_num_steady`; what those steps have in common stands there


class _Entry:
    """One request's row in the page table."""

    __slots__ = ("num_preemptions", "row")

    def __init__(self, row: int, num_preemptions: int) -> None:
        self.row = row
        self.num_preemptions = num_preemptions


def _no_slot(request: Request, position: int) -> PageIntegrityError:
    message = f"token {position} has no slot"
    return PageIntegrityError(message, request=request.request_id, num_pages=len(request.pages))


def _fill(target: NDArray[np.generic], values: _Ints, *, tail: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = tail
