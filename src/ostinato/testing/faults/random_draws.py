"""Row 31: random numbers repeat, because the generator that they come from is no part of the graph."""

from __future__ import annotations

import random

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["RANDOM_DRAWS"]

_STEPS = 4
_ALL_DIFFER = _STEPS


def _sample(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


def _num_different(steps: list[torch.Tensor]) -> int:
    return len({tuple(step.flatten().tolist()) for step in steps})


def _protected(device: str, config: GraphConfig) -> Outcome:
    x = torch.zeros(4, 2, device=device)
    with Graphed(_sample, example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        torch.manual_seed(7)
        first = [graphed(x) for _ in range(_STEPS)]
        torch.manual_seed(7)
        again = [graphed(x) for _ in range(_STEPS)]
        is_seeded = all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        return (_ALL_DIFFER, True), (_num_different(first), is_seeded)


def _unprotected(device: str) -> Outcome:
    """The draws come from a generator on the host, which runs at capture and never again."""
    x = torch.zeros(4, 2, device=device)
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: x + random.random())
        steps = []
        for _ in range(_STEPS):
            graph.replay()
            steps.append(out.clone())
        return _ALL_DIFFER, _num_different(steps)


RANDOM_DRAWS = Fault(
    row=31,
    title="random numbers: the generator's state is not advanced, or not registered, so samples repeat",
    source="PyTorch docs",
    protection="the device's generator is registered with every graph and advances at each replay; the engine's "
    "random numbers are drawn on the host and are inputs",
    cost="none",
    plant=Plant(
        protected=lambda device: _protected(device, GraphConfig(sizes=(4,))),
        traced=lambda device, partition: _protected(
            device, GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
        ),
        unprotected=_unprotected,
    ),
)
