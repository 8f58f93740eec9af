"""What one step computes, as decided by the scheduler.

Values only. They are fixed at scheduling time, so they stay true while the requests move on. Read by
execution (to build tensors and choose a graph) and by the loop (to deliver tokens). What every step asks for is worked
out without a cache where all decode: making one takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ostinato.engine.request import Request
from ostinato.engine.scheduler.decode_rows import DecodeRows

__all__ = ["ScheduledBatch", "ScheduledRequest"]


class ScheduledRequest(NamedTuple):
    """One request's share of a step.

    Attributes:
        request: the request; its pages hold every token up to ``end``.
        start: tokens computed before this step.
        num_new_tokens: tokens of this step, >= 1.
        samples: the chunk reaches the last known token, so its logits give the next one.
        is_decode: the request was in decode when scheduled (judged from its state, not from the shape).
    """

    request: Request
    start: int
    num_new_tokens: int
    samples: bool
    is_decode: bool

    @property
    def end(self) -> int:
        """Tokens computed after this step: the context length that attention sees."""
        return self.start + self.num_new_tokens


@dataclass(frozen=True)
class ScheduledBatch:
    """One step: decodes first in running order, then prefill chunks.

    Attributes:
        others: the requests of the step that are not in ``decodes``; those that sample come first.
        preempted: requests whose pages were taken back to make this step.
        decodes: requests in decode as columns, ahead of ``others``; None for none. Each request is in the step once.
    """

    others: tuple[ScheduledRequest, ...] = ()
    preempted: tuple[Request, ...] = ()
    decodes: DecodeRows | None = None

    @cached_property
    def items(self) -> tuple[ScheduledRequest, ...]:
        """All requests of the step; empty when nothing can run. Made from the columns: not for what every step does."""
        if self.decodes is None:
            return self.others
        pairs = zip(self.decodes.roster.requests, self.decodes.starts.tolist(), strict=True)
        return (*(ScheduledRequest(request, start, 1, True, True) for request, start in pairs), *self.others)

    @property
    def num_decodes(self) -> int:
        """Rows of ``decodes``."""
        return 0 if self.decodes is None else len(self.decodes)

    @property
    def num_reqs(self) -> int:
        return self.num_decodes + len(self.others)

    @property
    def num_tokens(self) -> int:
        if not self.others:
            return self.num_decodes
        return self.num_decodes + sum(item.num_new_tokens for item in self.others)

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests of the step."""
        return self._with_others if self.others else self._decoding

    @property
    def _decoding(self) -> tuple[Request, ...]:
        return () if self.decodes is None else self.decodes.roster.requests

    @cached_property
    def _with_others(self) -> tuple[Request, ...]:
        return self._decoding + tuple([item.request for item in self.others])

    @property
    def sampling(self) -> tuple[Request, ...]:
        """The requests that get a token: the first of all."""
        return self._sampling if self.others else self._decoding

    @cached_property
    def _sampling(self) -> tuple[Request, ...]:
        num_sampling = sum(item.samples for item in self.others)
        assert all(item.samples for item in self.others[:num_sampling]), "only the youngest can be in mid-prompt"
        return self.requests[: self.num_decodes + num_sampling]

    @cached_property
    def query_lens(self) -> list[int]:
        """New tokens of each request."""
        return [1] * self.num_decodes + [item.num_new_tokens for item in self.others]

    @cached_property
    def ends(self) -> list[int]:
        """Tokens of each request computed after the step."""
        decoding = [] if self.decodes is None else (self.decodes.starts + 1).tolist()
        return decoding + [item.end for item in self.others]

    @property
    def longest(self) -> int:
        """The largest of `ends`."""
        decoding = 0 if self.decodes is None else int(np.maximum.reduce(self.decodes.starts)) + 1
        return max(decoding, max(item.end for item in self.others)) if self.others else decoding

    @property
    def is_plain(self) -> bool:
        """True when every request that samples takes the largest logit and asks for nothing more."""
        if self.decodes is not None and not self.decodes.roster.are_all_plain:
            return False
        return not self.others or all(request.is_plain for request in self.sampling[self.num_decodes :])

    @property
    def uniform_query_len(self) -> int | None:
        """New tokens per request when every item is a decode and all have as many; else None."""
        if not self.others:
            return None if self.decodes is None else 1
        if not all(item.is_decode for item in self.others):
            return None
        lengths = {item.num_new_tokens for item in self.others} | ({1} if self.decodes is not None else set())
        return lengths.pop() if len(lengths) == 1 else None
