"""Writes a scheduled batch into the host side of a step's inputs, every row of it, tails too.

Keeps each running request's page numbers and settings in tables, so that a decode step costs a few array operations
and not a walk over all pages. A token that was sampled in the step before and not read yet is fed on the device: its
row says where it lies. Called by the executor, once a step and in the order of steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ostinato.engine.execution.sampling_writer import SamplingWriter
from ostinato.engine.paging import pages_for
from ostinato.engine.request import Request
from ostinato.engine.sampling import RowToBuild
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
        seed: of the random numbers for requests without a seed of their own.
    """

    def __init__(self, *, max_num_reqs: int, max_model_len: int, page_size: int, seed: int = 0) -> None:
        self._page_size = page_size
        self._tables = np.zeros((max_num_reqs, pages_for(max_model_len, page_size)), dtype=np.int32)
        self._entries: dict[Request, _Entry] = {}
        self._free = list(range(max_num_reqs))
        self._batch_rows: dict[Request, int] = {}
        self._sampling = SamplingWriter(max_num_reqs=max_num_reqs, seed=seed)

    def write(self, host: dict[str, Tensor], batch: ScheduledBatch) -> list[RowToBuild]:
        """Fill ``host``, tensors of the slots at the padded sizes (see `batch_slots`).

        Returns:
            Rows of the token counts that must be built before the step is launched.

        Raises:
            PageIntegrityError: a token has no page.
        """
        arrays = {name: tensor.numpy() for name, tensor in host.items()}
        num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
        table_rows, starts, lengths, token_ids, fed = self._walk(batch)
        ends = starts + lengths
        if num_tokens == num_reqs:
            positions, owners = starts, table_rows
            last_rows = np.arange(num_reqs)
        else:
            last_rows = np.cumsum(lengths) - 1
            first_rows = np.repeat(last_rows + 1 - lengths, lengths)
            positions = np.repeat(starts, lengths) + np.arange(num_tokens) - first_rows
            owners = np.repeat(table_rows, lengths)
        pages = self._tables[owners, positions // self._page_size]
        _fill(arrays["input_ids"], np.array(token_ids, dtype=np.int64), tail=0)
        _fill(arrays["positions"], positions, tail=0)
        _fill(arrays["slot_mapping"], pages * np.int64(self._page_size) + positions % self._page_size, tail=0)

        width = pages_for(int(ends.max()), self._page_size)
        tables = arrays["block_tables"]
        tables.fill(0)
        tables[:num_reqs, :width] = self._tables[table_rows, :width]
        _fill(arrays["seq_lens"], ends, tail=0)
        _fill(arrays["sampled_rows"], last_rows, tail=0)
        query_start = arrays["query_start"]
        query_start[0] = 0
        _fill(query_start[1:], last_rows + 1, tail=num_tokens)

        feed_rows = arrays["feed_rows"]
        feed_rows.fill(0)
        if fed:
            targets, sources = np.array(fed).T
            feed_rows[last_rows[targets]] = sources

        requests = batch.sampling
        return self._sampling.write(arrays, requests, table_rows[: len(requests)], ends[: len(requests)], fed)

    def _walk(self, batch: ScheduledBatch) -> tuple[_Ints, _Ints, _Ints, list[int], list[tuple[int, int]]]:
        """The one pass over the requests, which brings the page table up to date.

        Returns:
            table rows, starts and numbers of tokens [num_reqs], the ids of all tokens, and for each pending token its
            request's index and 1 + its row in the last batch.
        """
        entries, previous, page_size = self._entries, self._batch_rows, self._page_size
        table_rows: list[int] = []
        starts: list[int] = []
        lengths: list[int] = []
        token_ids: list[int] = []
        fed: list[tuple[int, int]] = []
        for request, start, num_new, samples, _ in batch.items:
            entry = entries.get(request)
            if entry is None or entry.num_preemptions != request.num_preemptions:
                entry = self._enter(request, batch)
            num_pages = len(request.pages)
            if entry.num_pages != num_pages:
                self._tables[entry.row, entry.num_pages : num_pages] = request.pages[entry.num_pages :]
                entry.num_pages = num_pages
            if start + num_new > num_pages * page_size:
                message = f"token {start + num_new - 1} has no slot"
                raise PageIntegrityError(message, request=request.request_id, num_pages=num_pages)
            is_fed = request.num_pending_tokens and samples
            if is_fed:
                fed.append((len(starts), 1 + previous[request]))
            if num_new > 1 or not is_fed:
                token_ids += request.token_slice(start, num_new)
            if is_fed:
                token_ids.append(0)
            table_rows.append(entry.row)
            starts.append(start)
            lengths.append(num_new)
        self._batch_rows = {item[0]: index for index, item in enumerate(batch.items)}
        return np.array(table_rows), np.array(starts), np.array(lengths), token_ids, fed

    def _enter(self, request: Request, batch: ScheduledBatch) -> _Entry:
        """Start a request's pages anew: it is new here, or came back with other pages after a preemption."""
        known = self._entries.pop(request, None)
        if known is None and not self._free:
            self._forget_others(batch)
        if known is None:
            row = self._free.pop()
            self._sampling.enter(row, request)
        else:
            row = known.row
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
