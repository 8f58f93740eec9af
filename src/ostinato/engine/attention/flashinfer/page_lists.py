"""Block tables as FlashInfer reads them: all page numbers in one list, where each request's begin, and the fill of
its last page.

Built on the host by array operations into pinned memory. A request without a context (a padded one) gets the null
page with zero tokens in it: the decode planner of flashinfer-python 0.6.13 counts a request of no pages as none while
it searches for a split and as one when it writes the work list, which could overrun it; with a page of no tokens both
agree, and the kernels give zeros. Called by `StepPlans`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ostinato.engine.paging import NULL_PAGE, pages_for

__all__ = ["PageLists"]


class PageLists:
    """The lists of one step, in memory that the next step overwrites.

    Args:
        max_num_reqs: requests of one batch.
        max_model_len: tokens that a request may hold.
        page_size: tokens a page.
        pin_memory: for copies that do not wait; the owner then overwrites nothing before they have run.
    """

    def __init__(self, *, max_num_reqs: int, max_model_len: int, page_size: int, pin_memory: bool) -> None:
        self._page_size = page_size

        def buffer(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, pin_memory=pin_memory)

        self.query_start = buffer(max_num_reqs + 1)
        """First query row of each request, cumulative."""
        self.page_start = buffer(max_num_reqs + 1)
        """First entry of each request in `pages`, cumulative."""
        self.last_page_lens = buffer(max_num_reqs)
        """Tokens in each request's last page."""
        self.pages = buffer(max_num_reqs * pages_for(max_model_len, page_size))
        """Page numbers, request after request."""

    def fill(self, query_lens: Sequence[int], seq_lens: Sequence[int], block_tables: Tensor, num_reqs: int) -> int:
        """Write the lists of a batch that is padded to ``num_reqs``.

        Args:
            query_lens: rows of each live request.
            seq_lens: context tokens of each live request, this step's included.
            block_tables: [>= live requests, >= pages of the longest] int32 on the host.
            num_reqs: requests, padded ones included.

        Returns:
            How many entries of `pages` are used.
        """
        num_live = len(seq_lens)
        query_start, page_start = self.query_start.numpy(), self.page_start.numpy()
        lens = np.zeros(num_reqs, dtype=np.int32)
        lens[:num_live] = seq_lens
        counts = np.maximum(-(-lens // self._page_size), 1)
        np.cumsum(counts, out=page_start[1 : num_reqs + 1])
        self.last_page_lens.numpy()[:num_reqs] = lens - (counts - 1) * self._page_size
        np.cumsum(query_lens, out=query_start[1 : num_live + 1])
        query_start[num_live + 1 : num_reqs + 1] = query_start[num_live]

        num_entries, num_live_entries = int(page_start[num_reqs]), int(page_start[num_live])
        pages = self.pages.numpy()
        if num_live:
            live = counts[:num_live]
            width = int(live.max())
            tables = block_tables.numpy()[:num_live, :width]
            pages[:num_live_entries] = tables[np.arange(width) < live[:, None]]
        pages[num_live_entries:num_entries] = NULL_PAGE
        return num_entries
