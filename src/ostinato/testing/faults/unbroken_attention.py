"""Row 16: an attention op without a break mark is captured in a piecewise graph, and padding leaks."""

from __future__ import annotations

import torch

from ostinato.errors import UnbrokenOpError
from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["UNBROKEN_ATTENTION"]


def _attend(x: torch.Tensor) -> torch.Tensor:
    q = x.view(1, 1, *x.shape)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q).view_as(x)


def _live(device: str) -> torch.Tensor:
    return torch.arange(6.0, device=device).view(3, 2)


def _protected(device: str, partition: str) -> Outcome:
    example = torch.ones(4, 2, device=device)
    config = GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
    with Graphed(_attend, example=(example,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        return _attend(_live(device)), graphed(_live(device))


def _unprotected(device: str) -> Outcome:
    live = _live(device)
    static = torch.zeros(4, 2, device=device)
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: _attend(static))
        static[:3] = live
        graph.replay()
        return _attend(live), out[:3]


UNBROKEN_ATTENTION = Fault(
    row=16,
    title='an attention op without a break mark silently captured in a "piecewise" graph',
    source="torchtitan#3685",
    protection="a segment refuses attention that is not marked as a break",
    cost="a look-up an op, at capture alone",
    caught_by=UnbrokenOpError,
    caught_when_traced=UnbrokenOpError,
    plant=Plant(
        protected=lambda device: _protected(device, "breakable"),
        traced=_protected,
        unprotected=_unprotected,
    ),
)
