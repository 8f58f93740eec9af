"""`KeptReads`: which slots of the cache a step has read that is to run again later, and whether others write them.

Requests go on writing behind their last token, which harms nothing; but pages that were given back are written by
others. Plain arrays on the host, a look at each step's slots. Owned by the executor while a shadow waits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["KeptReads"]


class KeptReads:
    """The slots of one step.

    Args:
        tables: [num_reqs, >= pages of the longest] page numbers of each request.
        ends: [num_reqs] tokens that each holds after the step.
        num_pages: of the cache.
        page_size: tokens a page.
    """

    def __init__(self, tables: NDArray[np.int32], ends: NDArray[np.int64], *, num_pages: int, page_size: int) -> None:
        self._is_read = np.zeros(num_pages * page_size, dtype=np.bool_)
        offsets = np.arange(page_size)
        for pages, end in zip(tables, ends.tolist(), strict=True):
            num_used = -(-end // page_size)
            slots = (pages[:num_used, None].astype(np.int64) * page_size + offsets).ravel()
            self._is_read[slots[:end]] = True

    def overlap(self, slots: NDArray[np.int64]) -> bool:
        """Whether one of ``slots``, which a later step writes, is among them."""
        return bool(self._is_read[slots].any())
