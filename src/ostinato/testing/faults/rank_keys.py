"""Row 29: ranks choose different keys, and a collective inside the graphs waits for good."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed, LiveBatch, agree_on
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["RANK_KEYS"]

_SIZES = (4, 8)
_LIVE = (3, 5)
"""Tokens of each rank in one step."""


def _all_reduce(parts: list[torch.Tensor]) -> torch.Tensor | None:
    """What every rank gets; None: they would wait for each other, as their buffers are not of one size."""
    if len({part.shape for part in parts}) > 1:
        return None
    return torch.stack(parts).sum(0)


def _rows(num_tokens: int, device: str) -> torch.Tensor:
    return torch.ones(num_tokens, device=device)


def _protected(device: str) -> Outcome:
    ranks = [
        Graphed(
            lambda x: x * 2, example=(_rows(max(_SIZES), device),), config=GraphConfig(sizes=_SIZES, outputs="view")
        )
        for _ in _LIVE
    ]
    try:
        parts = []
        agreed = agree_on([LiveBatch(num_tokens=n) for n in _LIVE])
        for rank, num_tokens in zip(ranks, _LIVE, strict=True):
            rank.warm_up()
            rank.capture()
            decision = rank.decide(agreed)
            assert decision.key is not None
            (x,) = rank.buffers.views(rank.sizes(decision)).values()
            x.zero_()
            x[:num_tokens] = 1
            rank.run(decision)
            parts.append(rank.plans[decision.key].outputs)
        return [4.0] * 3 + [2.0] * 2 + [0.0] * 3, _told(_all_reduce(parts))
    finally:
        for rank in ranks:
            rank.close()


def _unprotected(device: str) -> Outcome:
    """Each rank takes the smallest bucket that holds its own tokens."""
    parts = []
    with bare_backend(device) as backend:
        for num_tokens in _LIVE:
            x = _rows(min(size for size in _SIZES if size >= num_tokens), device)
            graph, out = record(backend, lambda x=x: x * 2)  # type: ignore[misc]
            x[num_tokens:] = 0
            graph.replay()
            parts.append(out)
    return [4.0] * 3 + [2.0] * 2 + [0.0] * 3, _told(_all_reduce(parts))


def _told(reduced: torch.Tensor | None) -> list[float] | str:
    return "hangs" if reduced is None else reduced.tolist()


RANK_KEYS = Fault(
    row=29,
    title="ranks choose different keys: a collective hangs",
    source="sglang#37561, #40649",
    protection="ranks decide by one batch, `agree_on` of what all of them bring",
    cost="a small exchange between hosts a step",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
