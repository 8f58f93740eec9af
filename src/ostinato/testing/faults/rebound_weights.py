"""Rows 2 and 35: what a graph reads is replaced or let go of; here a layer's weight, and an adapter's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.errors import TensorReboundError
from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["REBOUND_WEIGHTS", "UNLOADED_ADAPTER"]

_WIDTH = 4


class _Adapted(torch.nn.Module):
    """A linear layer, and an adapter for it that may be loaded or not."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(_WIDTH, device=device))
        self.adapters = {"en": torch.ones(_WIDTH, _WIDTH, device=device)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.weight
        return out + x @ self.adapters["en"] if "en" in self.adapters else out

    def reload(self) -> None:
        """New weights, as a checkpoint's loader puts them in."""
        self.weight = torch.nn.Parameter(self.weight * 3)

    def unload(self) -> None:
        """Another adapter takes the memory soon."""
        del self.adapters["en"]


def _protected(device: str, change: Callable[[_Adapted], None], partition: str = "") -> Outcome:
    layer = _Adapted(device)
    x = torch.ones(2, _WIDTH, device=device)
    config = GraphConfig(sizes=(2,))
    if partition:
        config = GraphConfig(mode="piecewise", partition=partition, sizes=(2,))
    with Graphed(layer, example=(x,), config=config) as graphed, torch.no_grad():
        graphed.warm_up()
        graphed.capture()
        graphed(x)
        change(layer)
        return layer(x), graphed(x)


def _unprotected(device: str, change: Callable[[_Adapted], None]) -> Outcome:
    layer = _Adapted(device)
    x = torch.ones(2, _WIDTH, device=device)
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: layer(x))
        change(layer)
        graph.replay()
        return layer(x), out


REBOUND_WEIGHTS = Fault(
    row=2,
    title="weights swapped, reloaded or re-bound after capture",
    source="vllm#48312, #48941",
    protection="guards look, before each replay, whether what the graph reads is still what stands in its place",
    cost="a few microseconds a step; weights in rotation, torch tells of replaced ones at once",
    caught_by=TensorReboundError,
    caught_when_traced=TensorReboundError,
    plant=Plant(
        protected=lambda device: _protected(device, _Adapted.reload),
        traced=lambda device, partition: _protected(device, _Adapted.reload, partition),
        unprotected=lambda device: _unprotected(device, _Adapted.reload),
    ),
)
UNLOADED_ADAPTER = Fault(
    row=35,
    title="an adapter is unloaded while a captured graph still reads its weights",
    source="vllm#28334",
    protection="guards as in row 2, and they keep the memory that a graph reads until it is released",
    cost="as in row 2; the adapter's memory stays until then",
    caught_by=TensorReboundError,
    caught_when_traced=TensorReboundError,
    plant=Plant(
        protected=lambda device: _protected(device, _Adapted.unload),
        traced=lambda device, partition: _protected(device, _Adapted.unload, partition),
        unprotected=lambda device: _unprotected(device, _Adapted.unload),
    ),
)
