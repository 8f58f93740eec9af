"""Writes a scheduled batch into the host side of a step's inputs, every row of it, tails too.

Keeps each running request's page numbers and settings in tables, so that a step's decodes cost a few array operations;
only those that got a page, and prompts, are looked at one by one. A token that was sampled in the step before and
not read yet is fed on the device: its row says where it lies. Called by the executor, once a step and in their order.
"""

from __future__ import annotations

from typing import Any

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
        self._num_pages = np.zeros(max_num_reqs, dtype=np.int64)  # of the table, by row
        self._last_places = np.zeros(max_num_reqs, dtype=np.int64)  # 1 + place in the last batch, by row; 0 for none
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
        arrays = host.arrays
        num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
        table_rows, starts, lengths, token_ids, sources = self._columns(batch)
        ends = starts + lengths
        if num_tokens == num_reqs:
            positions, owners, token_sources = starts, table_rows, sources
            last_rows, query_ends = self._counting[:num_reqs], self._counting[1 : num_reqs + 1]
        else:
            query_ends = np.cumsum(lengths)
            last_rows = query_ends - 1
            positions = np.repeat(starts - query_ends + lengths, lengths) + np.arange(num_tokens)
            owners = np.repeat(table_rows, lengths)
            token_sources = np.zeros(num_tokens, dtype=np.int64)
            token_sources[last_rows] = sources
        page_numbers = positions // self._page_size
        offsets = positions - page_numbers * self._page_size
        pages = self._tables[owners, page_numbers].astype(np.int64)
        _fill(arrays["input_ids"], token_ids, tail=0)
        _fill(arrays["feed_rows"], token_sources, tail=0)
        _fill(arrays["positions"], positions, tail=0)
        _fill(arrays["slot_mapping"], pages * self._page_size + offsets, tail=0)

        tables = arrays["block_tables"]
        # Whole rows, whose unused ends are zero; "clip" only so that numpy needs no buffer in between.
        self._tables.take(table_rows, axis=0, out=tables[:num_reqs], mode="clip")
        tables[num_reqs:] = 0
        _fill(arrays["seq_lens"], ends, tail=0)
        _fill(arrays["sampled_rows"], last_rows, tail=0)
        query_start = arrays["query_start"]
        query_start[0] = 0
        _fill(query_start[1:], query_ends, tail=num_tokens)

        requests = batch.sampling
        at = slice(len(requests))
        return self._sampling.write(arrays, requests, table_rows[at], ends[at], sources[at])

    def _columns(self, batch: ScheduledBatch) -> tuple[_Ints, _Ints, _Ints, _Ints, _Ints]:
        """The batch as columns; brings the page table up to date.

        Returns:
            table rows, starts and numbers of tokens [num_reqs], the ids of all tokens [num_tokens], and where each
            request's pending token lies [num_reqs]: 1 + its row in the last batch, 0 if it has none.

        Raises:
            PageIntegrityError: a token has no page.
        """
        parts = []
        if batch.decodes is not None:
            parts.append(self._decode_columns(batch, batch.decodes))
        if batch.others:
            parts.append(self._other_columns(batch))
        table_rows, starts, lengths, token_ids, is_fed = (
            parts[0] if len(parts) == 1 else [np.concatenate(each) for each in zip(*parts, strict=True)]
        )
        sources = self._last_places[table_rows] * is_fed
        assert np.count_nonzero(sources) == np.count_nonzero(is_fed), "a pending token was sampled in the step before"
        self._last_places.fill(0)
        self._last_places[table_rows] = self._counting[1 : len(table_rows) + 1]
        return table_rows, starts, lengths, token_ids, sources

    def _decode_columns(self, batch: ScheduledBatch, decodes: DecodeRows) -> tuple[NDArray[Any], ...]:
        """Of the requests in decode, without a look at each."""
        if self._known is not None and self._known[0] is decodes.roster:
            rows = self._known[1]
        else:
            rows = np.array([self._entry(request, batch).row for request in decodes.roster.requests])
            self._known = decodes.roster, rows
        num_known, num_pages = self._num_pages[rows], decodes.num_pages
        at = (num_known != num_pages).nonzero()[0]
        if len(at):
            is_one = num_known[at] + 1 == num_pages[at]
            for index in at[~is_one].tolist():
                self._take_pages(int(rows[index]), decodes.roster.requests[index])
            at = at[is_one]
            self._tables[rows[at], num_known[at]] = decodes.newest_pages[at]
            self._num_pages[rows] = num_pages
        is_short = decodes.starts >= num_pages * self._page_size
        if is_short.any():
            first = int(is_short.argmax())
            raise _no_slot(decodes.roster.requests[first], int(decodes.starts[first]))
        is_fed = decodes.num_pending > 0
        return rows, decodes.starts, self._ones[: len(rows)], decodes.token_ids * ~is_fed, is_fed

    def _other_columns(self, batch: ScheduledBatch) -> tuple[NDArray[Any], ...]:
        """Of the other requests, one by one."""
        table_rows: list[int] = []
        starts: list[int] = []
        lengths: list[int] = []
        token_ids: list[int] = []
        are_fed: list[bool] = []
        for request, start, num_new, samples, _ in batch.others:
            entry = self._entry(request, batch)
            if self._num_pages[entry.row] != len(request.pages):
                self._take_pages(entry.row, request)
            if start + num_new > len(request.pages) * self._page_size:
                raise _no_slot(request, start + num_new - 1)
            is_fed = samples and request.num_pending_tokens > 0
            if num_new > 1 or not is_fed:
                token_ids += request.token_slice(start, num_new)
            if is_fed:
                token_ids.append(0)
            table_rows.append(entry.row)
            starts.append(start)
            lengths.append(num_new)
            are_fed.append(is_fed)
        return tuple(np.array(each, dtype=np.int64) for each in (table_rows, starts, lengths, token_ids, are_fed))

    def _take_pages(self, row: int, request: Request) -> None:
        """Add the pages that a request got since its row was written."""
        num_known, num_pages = int(self._num_pages[row]), len(request.pages)
        self._tables[row, num_known:num_pages] = request.pages[num_known:]
        self._num_pages[row] = num_pages

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
            self._last_places[row] = 0
            self._sampling.enter(row, request)
        else:
            row = known.row
        self._tables[row] = 0
        self._num_pages[row] = 0
        entry = self._entries[request] = _Entry(row, request.num_preemptions)
        return entry

    def _forget_others(self, batch: ScheduledBatch) -> None:
        """Give back the rows of requests that are not in ``batch``."""
        self._known = None
        present = set(batch.requests)
        for request in [r for r in self._entries if r not in present]:
            self._free.append(self._entries.pop(request).row)


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
