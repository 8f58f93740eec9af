"""Row 15: a prompt of exactly 1 + k tokens is taken for a decode, because only its shape was looked at.

The model keeps one running sum a slot, as a recurrent state. A prompt begins at zero, a decode goes on from the
state; with k = 2 drafted tokens both bring three tokens.
"""

from __future__ import annotations

import torch

from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.runtime import GraphConfig, Graphed, GraphKey, LiveBatch
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["PROMPT_AS_DECODE"]

_QUERY_LEN = 3
_STALE = 100.0
"""What the slot's former owner left."""


class _Recurrent:
    def __init__(self, device: str) -> None:
        self.state = torch.full((), _STALE, device=device)
        self.is_decode = True

    def prepare(self, key: GraphKey) -> None:
        self.is_decode = key.uniform_query_len is not None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_decode:
            self.state.zero_()
        return self.state.add_(x.sum()) + torch.zeros_like(x)


def _batch() -> ScheduledBatch:
    """One new request, whose prompt is as long as a decode with its draft."""
    scheduler = Scheduler(
        max_num_reqs=1, max_num_batched_tokens=8, max_model_len=32, allocator=PageAllocator(num_pages=4, page_size=16)
    )
    scheduler.add(Request(request_id="new", prompt_token_ids=[1] * _QUERY_LEN))
    return scheduler.schedule()


def _expected(device: str) -> torch.Tensor:
    return torch.full((_QUERY_LEN,), float(_QUERY_LEN), device=device)


def _protected(device: str) -> Outcome:
    model = _Recurrent(device)
    batch = _batch()
    config = GraphConfig(
        mode="full_decode_only", max_size=8, max_num_reqs=1, decode_sizes=(1,), uniform_query_lens=(_QUERY_LEN,)
    )
    example = torch.ones(_QUERY_LEN, device=device)
    with Graphed(model, example=(example,), config=config, prepare=model.prepare) as graphed:
        graphed.warm_up()
        graphed.capture()
        model.state.fill_(_STALE)
        decision = graphed.decide(
            LiveBatch(num_tokens=batch.num_tokens, num_reqs=1, uniform_query_len=batch.uniform_query_len)
        )
        model.is_decode = batch.uniform_query_len is not None
        graphed.buffers.views(graphed.sizes(decision))["x"].fill_(1)
        got = graphed.run(decision)
        assert graphed.counters.by_reason == {"NOT_UNIFORM": 1}
        return _expected(device), got


def _unprotected(device: str) -> Outcome:
    """A uniform batch of 1 + k tokens a request, whoever they are, goes to the decode graph."""
    model = _Recurrent(device)
    static = torch.ones(_QUERY_LEN, device=device)
    batch = _batch()
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: model(static))
        model.state.fill_(_STALE)
        if batch.num_tokens == batch.num_reqs * _QUERY_LEN:
            graph.replay()
        return _expected(device), out


PROMPT_AS_DECODE = Fault(
    row=15,
    title="a prompt of exactly 1+k tokens taken for decode because only its shape was looked at",
    source="vllm#49918, #53051",
    protection="a batch is uniform decode only if each request is a decode by its state, as the scheduler knows it",
    cost="none",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
