"""Writes how each request of a batch is sampled, and keeps book of whose tokens the device has counted.

A batch of plainly greedy requests costs two memory fills. A row of counts belongs to the request that holds the row
of the same place among the writer's entries; the step that chooses a token counts it, so a row is right when as many
tokens were counted as the request has before the step. The count is noted before the launch: a step that is written
twice (an interrupt, a failure) finds one token too many and has the row built anew. Called by `BatchWriter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.engine.request import Request
from ostinato.engine.sampling import RowToBuild, SettingsTable

__all__ = ["SamplingWriter"]

_NONE: Final = -1


class SamplingWriter:
    """Settings and counts of the requests in progress, by the writer's row of each.

    Args:
        max_num_reqs: how many rows.
        seed: of the random numbers for requests without a seed of their own.
    """

    def __init__(self, *, max_num_reqs: int, seed: int) -> None:
        self._settings = SettingsTable(max_num_reqs, torch.Generator().manual_seed(seed))
        self._is_special = np.zeros(max_num_reqs, dtype=np.bool_)  # the likeliest token is not all that is asked for
        self._has_penalties = np.zeros(max_num_reqs, dtype=np.bool_)
        self._num_prompt = np.zeros(max_num_reqs, dtype=np.int64)
        self._num_counted = np.full(max_num_reqs, _NONE)
        """Tokens that the row of counts holds once the steps that were written have run."""

    def enter(self, row: int, request: Request) -> None:
        """``row`` is ``request``'s from now on."""
        params = request.params
        self._settings.enter(row, params)
        self._is_special[row] = not params.takes_likeliest
        self._has_penalties[row] = params.has_penalties
        self._num_prompt[row] = request.num_prompt_tokens
        self._num_counted[row] = _NONE

    def write(
        self,
        arrays: Mapping[str, NDArray[Any]],
        requests: Sequence[Request],
        rows: NDArray[np.int64],
        ends: NDArray[np.int64],
        sources: NDArray[np.int64],
    ) -> list[RowToBuild]:
        """Fill "settings" and "count_rows", tails too.

        Args:
            requests: those that sample, which stand first in the batch.
            rows: [num_requests] row of each.
            ends: [num_requests] tokens of each, pending ones too.
            sources: [num_requests] row of the sampled tokens at which the pending token of each lies; 0 if it has none.

        Returns:
            Rows of counts that do not hold their request's tokens.
        """
        arrays["settings"].fill(0)
        arrays["count_rows"].fill(0)
        at = self._is_special[rows].nonzero()[0]
        if not at.size:
            return []
        self._settings.fill(arrays["settings"], at, rows[at], ends[at] - self._num_prompt[rows[at]])
        at = at[self._has_penalties[rows[at]]]
        if not at.size:
            return []
        counted = rows[at]
        arrays["count_rows"][at] = counted + 1  # row 0 is nobody's
        stale = at[self._num_counted[counted] != ends[at]]
        self._num_counted[counted] = ends[at] + 1
        if not stale.size:
            return []
        return [RowToBuild(int(rows[i]) + 1, requests[i], int(sources[i])) for i in stale]
