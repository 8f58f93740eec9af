"""Rows 10 and 33: a graph that was captured for a short context is replayed for a long one.

Every request asks for its newest page and for the sum of its history. How far a table reaches, and into how many
splits a context is cut, are numbers of the host, frozen at capture.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.runtime import GraphConfig, Graphed, GraphKey, LiveBatch, Slot
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["FROZEN_SPLITS", "SHORT_TABLE"]

_NUM_REQS, _PAGE_SIZE, _MAX_CONTEXT = 4, 2, 16
_MAX_PAGES = _MAX_CONTEXT // _PAGE_SIZE
_SPLIT = 4
_TIERS = (4, 8)
_CONTEXTS = (3, 7, 10)
"""Of the first request in each step: the first tier, the second, and longer than all."""


class _Attention:
    def __init__(self, device: str) -> None:
        self.history = torch.arange(1.0, 1 + _MAX_CONTEXT, device=device)
        self.context = _TIERS[0]
        """Tokens for which the next launch is made."""

    def prepare(self, key: GraphKey) -> None:
        self.context = key.kv_tier or _MAX_CONTEXT

    def newest_page(self, seq_lens: torch.Tensor, block_tables: torch.Tensor) -> torch.Tensor:
        """[num_reqs]: looks the page up in a table that is as wide as the context needs."""
        width = -(-self.context // _PAGE_SIZE)
        rows = torch.arange(seq_lens.shape[0], device=seq_lens.device)
        newest = torch.clamp(seq_lens - 1, min=0) // _PAGE_SIZE
        return block_tables[:, :width].reshape(-1)[rows * width + newest]

    def history_sum(self, seq_lens: torch.Tensor, block_tables: torch.Tensor) -> torch.Tensor:
        """[num_reqs]: by as many splits as the context needs."""
        num_splits = -(-self.context // _SPLIT)
        positions = torch.arange(num_splits * _SPLIT, device=seq_lens.device)
        seen = self.history[positions] * (positions < seq_lens[:, None])
        return seen.view(-1, num_splits, _SPLIT).sum((1, 2))


_Kernel = Callable[[_Attention, torch.Tensor, torch.Tensor], torch.Tensor]


def _step(context: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    seq_lens = torch.tensor([context, 1, 1, 1], device=device)
    return seq_lens, torch.arange(_NUM_REQS * _MAX_PAGES, device=device).view(_NUM_REQS, _MAX_PAGES)


def _expected(kernel: _Kernel, device: str) -> torch.Tensor:
    attention = _Attention(device)
    attention.context = _MAX_CONTEXT
    return torch.stack([kernel(attention, *_step(context, device)) for context in _CONTEXTS])


def _protected(device: str, kernel: _Kernel) -> Outcome:
    attention = _Attention(device)
    slots = {
        "seq_lens": Slot(shape=(None,), dtype=torch.int64, axis="num_reqs"),
        "block_tables": Slot(shape=(None, _MAX_PAGES), dtype=torch.int64, axis="num_reqs"),
    }
    config = GraphConfig(
        mode="full_decode_only", max_size=_NUM_REQS, max_num_reqs=_NUM_REQS, decode_sizes=(_NUM_REQS,), kv_tiers=_TIERS
    )
    steps = []
    with Graphed(
        lambda seq_lens, tables: kernel(attention, seq_lens, tables),
        slots=slots,
        device=device,
        config=config,
        prepare=attention.prepare,
    ) as graphed:
        graphed.warm_up()
        graphed.capture()
        for context in _CONTEXTS:
            decision = graphed.decide(
                LiveBatch(num_tokens=_NUM_REQS, num_reqs=_NUM_REQS, uniform_query_len=1, context_tokens=context)
            )
            views = graphed.buffers.views(graphed.sizes(decision))
            views["seq_lens"][:], views["block_tables"][:] = _step(context, device)
            attention.context = context  # what an eager step is launched for
            steps.append(graphed.run(decision))
        assert graphed.counters.by_reason == {"EXACT": 2, "OVER_LARGEST": 1}
    return _expected(kernel, device), torch.stack(steps)


def _unprotected(device: str, kernel: _Kernel) -> Outcome:
    attention = _Attention(device)
    seq_lens, tables = _step(_CONTEXTS[0], device)
    steps = []
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: kernel(attention, seq_lens, tables))
        for context in _CONTEXTS:
            seq_lens.copy_(_step(context, device)[0])
            graph.replay()
            steps.append(out.clone())
    return _expected(kernel, device), torch.stack(steps)


FROZEN_SPLITS = Fault(
    row=10,
    title="launch topology frozen: split count chosen for a short context, slow or wrong at a long one",
    source="aiter#4555, sparkinfer#115",
    protection="the longest context is part of the key (`kv_tiers`), and the engine's splits follow from it; `qualify` "
    "warns of a replay that is slower than eager",
    cost="a graph a tier and bucket; none where a kernel's cost follows the live context",
    plant=Plant(
        protected=lambda device: _protected(device, _Attention.history_sum),
        unprotected=lambda device: _unprotected(device, _Attention.history_sum),
    ),
)
SHORT_TABLE = Fault(
    row=33,
    title="a graph captured on one context length replayed far beyond it reads out of bounds",
    source="imp#950",
    protection="no key serves a context beyond its tier; the step takes a longer tier, or runs eagerly with a reason",
    cost="as in row 10",
    plant=Plant(
        protected=lambda device: _protected(device, _Attention.newest_page),
        unprotected=lambda device: _unprotected(device, _Attention.newest_page),
    ),
)
