"""Writes a scheduled batch into the host side of a step's inputs, every row of it, tails too.

Keeps each running request's page numbers in one table, so that a decode step costs a few array operations and
not a walk over all pages. A token that was sampled in the step before and not read yet is fed on the device: its
row says where it lies. Called by the executor, once a step and in the order of steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ostinato.engine.paging import pages_for
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.errors import PageIntegrityError

__all__ = ["BatchWriter"]

_Ints = NDArray[np.int64]


class BatchWriter:
    """Remembers which requests were in the last batch, and their pages.

    Args:
        max_num_reqs: requests of one batch.
        max_model_len: tokens that a request may hold.
        page_size: tokens a page.
    """

    def __init__(self, *, max_num_reqs: int, max_model_len: int, page_size: int) -> None:
        self._page_size = page_size
        self._tables = np.zeros((max_num_reqs, pages_for(max_model_len, page_size)), dtype=np.int32)
        self._entries: dict[Request, _Entry] = {}
        self._free = list(range(max_num_reqs))
        self._batch_rows: dict[Request, int] = {}

    def write(self, host: dict[str, Tensor], batch: ScheduledBatch) -> None:
        """Fill ``host``, tensors of the slots at the padded sizes (see `batch_slots`).

        Raises:
            PageIntegrityError: a token has no page.
        """
        arrays = {name: tensor.numpy() for name, tensor in host.items()}
        items, num_reqs = batch.items, batch.num_reqs
        table_rows = self._update_tables(batch)
        starts = np.fromiter([item.start for item in items], np.int64, num_reqs)
        lengths = np.fromiter([item.num_new_tokens for item in items], np.int64, num_reqs)
        ends = starts + lengths
        last_rows = np.cumsum(lengths) - 1

        width = pages_for(int(ends.max()), self._page_size)
        tables = arrays["block_tables"]
        tables.fill(0)
        tables[:num_reqs, :width] = self._tables[table_rows, :width]
        self._write_tokens(arrays, batch, table_rows, starts, lengths)
        _fill(arrays["seq_lens"], ends, tail=0)
        _fill(arrays["sampled_rows"], last_rows, tail=0)
        query_start = arrays["query_start"]
        query_start[0] = 0
        _fill(query_start[1:], last_rows + 1, tail=batch.num_tokens)
        self._feed(arrays, batch, last_rows)

    def _write_tokens(
        self,
        arrays: dict[str, NDArray[np.generic]],
        batch: ScheduledBatch,
        table_rows: _Ints,
        starts: _Ints,
        lengths: _Ints,
    ) -> None:
        """One row a token: where it stands, where its keys and values go, and which it is."""
        if batch.num_tokens == batch.num_reqs:
            positions, owners = starts, table_rows
        else:
            first_rows = np.repeat(np.cumsum(lengths) - lengths, lengths)
            positions = np.repeat(starts, lengths) + np.arange(batch.num_tokens) - first_rows
            owners = np.repeat(table_rows, lengths)
        pages = self._tables[owners, positions // self._page_size]
        _fill(arrays["positions"], positions, tail=0)
        _fill(arrays["slot_mapping"], pages * np.int64(self._page_size) + positions % self._page_size, tail=0)
        token_ids: list[int] = []
        for item in batch.items:
            request = item.request
            if item.num_new_tokens > 1 or not item.is_decode:
                known = request.token_slice(item.start, item.num_new_tokens)
                token_ids += known
                token_ids += [0] * (item.num_new_tokens - len(known))  # a pending token is fed
            else:
                token_ids.append(0 if request.num_pending_tokens else request.output_token_ids[-1])
        _fill(arrays["input_ids"], np.array(token_ids, dtype=np.int64), tail=0)

    def _feed(self, arrays: dict[str, NDArray[np.generic]], batch: ScheduledBatch, last_rows: _Ints) -> None:
        """Say for each pending token in which row of the last batch it was sampled; row r is 1 + r there."""
        feed_rows = arrays["feed_rows"]
        feed_rows[:] = 0
        previous = self._batch_rows
        fed = [
            (index, previous[item.request])
            for index, item in enumerate(batch.items)
            if item.request.num_pending_tokens and item.samples
        ]
        if fed:
            targets, sources = zip(*fed, strict=True)
            feed_rows[last_rows[list(targets)]] = np.array(sources) + 1
        self._batch_rows = {item.request: index for index, item in enumerate(batch.items)}

    def _update_tables(self, batch: ScheduledBatch) -> _Ints:
        """Bring the page table up to date; the table row of each item."""
        entries = self._entries
        rows: list[int] = []
        for item in batch.items:
            request = item.request
            entry = entries.get(request)
            if entry is None or entry.num_preemptions != request.num_preemptions:
                entry = self._enter(request, batch)
            if entry.num_pages != len(request.pages):
                self._tables[entry.row, entry.num_pages : len(request.pages)] = request.pages[entry.num_pages :]
                entry.num_pages = len(request.pages)
            if item.end > entry.num_pages * self._page_size:
                message = f"token {item.end - 1} has no slot"
                raise PageIntegrityError(message, request=request.request_id, num_pages=entry.num_pages)
            rows.append(entry.row)
        return np.array(rows, dtype=np.int64)

    def _enter(self, request: Request, batch: ScheduledBatch) -> _Entry:
        """Start a request's row anew: it is new here, or came back with other pages after a preemption."""
        known = self._entries.pop(request, None)
        if known is None and not self._free:
            self._forget_others(batch)
        row = self._free.pop() if known is None else known.row
        self._tables[row] = 0
        entry = self._entries[request] = _Entry(row, request.num_preemptions)
        return entry

    def _forget_others(self, batch: ScheduledBatch) -> None:
        """Give back the rows of requests that are not in ``batch``."""
        present = {item.request for item in batch.items}
        for request in [r for r in self._entries if r not in present]:
            self._free.append(self._entries.pop(request).row)


class _Entry:
    """One request's row in the page table."""

    __slots__ = ("num_pages", "num_preemptions", "row")

    def __init__(self, row: int, num_preemptions: int) -> None:
        self.row = row
        self.num_preemptions = num_preemptions
        self.num_pages = 0


def _fill(target: NDArray[np.generic], values: _Ints, *, tail: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = tail
