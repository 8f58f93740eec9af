"""What one step computes, as decided by the scheduler.

Values only. They are fixed at scheduling time, so they stay true while the requests move on. Read by
execution (to build tensors and choose a graph) and by the loop (to deliver tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ostinato.engine.request import Request

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
        items: the requests of the step, each once; empty when nothing can run. Those that sample come first.
        preempted: requests whose pages were taken back to make this step.
    """

    items: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...] = ()

    @cached_property
    def num_tokens(self) -> int:
        return sum(item.num_new_tokens for item in self.items)

    @property
    def num_reqs(self) -> int:
        return len(self.items)

    @cached_property
    def sampling(self) -> tuple[Request, ...]:
        """The requests that get a token: those of the first items."""
        found = tuple(item.request for item in self.items if item.samples)
        assert all(item.samples for item in self.items[: len(found)]), "only the youngest can be in mid-prompt"
        return found

    @cached_property
    def is_plain(self) -> bool:
        """True when every request that samples takes the largest logit and asks for nothing more."""
        return all(request.is_plain for request in self.sampling)

    @cached_property
    def uniform_query_len(self) -> int | None:
        """New tokens per request when every item is a decode and all have as many; else None."""
        lengths = {item.num_new_tokens for item in self.items}
        if len(lengths) == 1 and all(item.is_decode for item in self.items):
            return lengths.pop()
        return None
