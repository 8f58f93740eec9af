"""Books of the steps that were launched and whose tokens were not read: what a launch and a reading change.

Decodes are changed as columns, all at once; prompts, and requests that left the table of decodes since their step was
scheduled, one by one. It chooses nothing and owns no page. Used by the scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ostinato.engine.scheduler.batch import ScheduledBatch, ScheduledRequest
from ostinato.engine.scheduler.decode_table import DecodeTable
from ostinato.errors import EngineError

__all__ = ["LaunchedSteps"]


class LaunchedSteps:
    """Steps in flight, oldest first.

    Args:
        decodes: the requests in decode; who samples for the first time joins them.
    """

    def __init__(self, decodes: DecodeTable) -> None:
        self._decodes = decodes
        self._unread: deque[ScheduledBatch] = deque()

    def __len__(self) -> int:
        return len(self._unread)

    def drop(self, batch: ScheduledBatch) -> None:
        """Forget a step, launched or not."""
        self._unread = deque(unread for unread in self._unread if unread is not batch)

    def drop_all(self) -> None:
        """Forget every step."""
        self._unread.clear()

    def advance(self, batch: ScheduledBatch) -> None:
        """Record that a step was launched: its tokens count as computed, and whoever samples has one pending.

        Raises:
            EngineError: the batch is not the one that is due. Then nothing is changed.
        """
        live = [item for item in batch.others if not item.request.is_finished]
        for item in live:
            if item.request.num_computed_tokens != item.start:
                raise _out_of_order(item)
        if batch.decodes is not None:
            for request in self._decodes.launch(batch.decodes):
                raise _out_of_order(next(item for item in batch.items if item.request is request))
        for item in live:
            item.request.num_computed_tokens = item.end
            item.request.num_pending_tokens += item.samples
            if item.samples:
                self._decodes.join(item.request)
        self._unread.append(batch)

    def complete(self, batch: ScheduledBatch, sampled: Mapping[str, int] | NDArray[np.int64]) -> None:
        """Record a step's tokens, once they are read; a step that nobody advanced is advanced first.

        Args:
            batch: what was scheduled. Requests that ended meanwhile are skipped.
            sampled: [num_sampling] token of each item that samples, in order; or request id -> token.

        Raises:
            EngineError: a token is missing, or the batch is not the one that is due. Then nothing is changed.
        """
        token_ids = _in_order(batch, sampled) if isinstance(sampled, Mapping) else sampled
        if len(token_ids) != len(batch.sampling):
            raise EngineError("not one token for each request", expected=len(batch.sampling), got=len(token_ids))
        if not self._unread or self._unread[0] is not batch:
            if not any(batch is unread for unread in self._unread):
                self.advance(batch)
            if self._unread[0] is not batch:
                raise EngineError("a step was completed out of order", expected="the oldest step that is not completed")
        self._unread.popleft()
        rest: Sequence[int] = range(batch.num_decodes, len(batch.sampling))
        if batch.decodes is not None:
            roster, num_decodes = batch.decodes.roster, batch.num_decodes
            if self._decodes.are_all_here(roster):
                self._decodes.read(roster.slots, token_ids[:num_decodes])
            else:
                is_here = self._decodes.is_here(roster)
                at = is_here.nonzero()[0]
                self._decodes.read(roster.slots[at], token_ids[at])
                rest = [*(~is_here).nonzero()[0].tolist(), *rest]
        if rest:
            self._complete_others(batch, rest, token_ids)

    def _complete_others(self, batch: ScheduledBatch, at: Sequence[int], token_ids: NDArray[np.int64]) -> None:
        """`complete` for those at the places ``at``: in decode since the step, preempted or ended since."""
        requests, decodes = batch.sampling, self._decodes
        here = [index for index in at if requests[index] in decodes]
        decodes.read(decodes.slots_of(requests[index] for index in here), token_ids[here])
        for index in at:
            request = requests[index]
            if request not in decodes and not request.is_finished:
                request.num_pending_tokens -= 1
                request.output_token_ids.append(int(token_ids[index]))


def _in_order(batch: ScheduledBatch, sampled: Mapping[str, int]) -> NDArray[np.int64]:
    """The tokens of ``sampled`` in the order of the batch; -1 for requests that have ended."""
    token_ids = np.full(len(batch.sampling), -1, dtype=np.int64)
    for index, request in enumerate(batch.sampling):
        if request.is_finished:
            continue
        if request.request_id not in sampled:
            raise EngineError("no token was sampled for a request", request=request.request_id)
        token_ids[index] = sampled[request.request_id]
    return token_ids


def _out_of_order(item: ScheduledRequest) -> EngineError:
    request_id, got = item.request.request_id, item.request.num_computed_tokens
    return EngineError("a step was completed out of order", request=request_id, expected=item.start, got=got)
