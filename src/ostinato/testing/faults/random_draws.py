"""Row 31: random numbers repeat, because the generator that they come from is no part of the graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["RANDOM_DRAWS"]

_STEPS = 4
_ALL_DIFFER = _STEPS


def _num_different(steps: list[torch.Tensor]) -> int:
    return len({tuple(step.flatten().tolist()) for step in steps})


def _shifted(x: torch.Tensor, draw: Callable[[], float]) -> torch.Tensor:
    return x + draw()


def _protected(device: str, config: GraphConfig, *, own: torch.Generator | None = None) -> Outcome:
    """Draws from the device's default generator, or from ``own``."""
    x = torch.zeros(4, 2, device=device)

    def sample(x: torch.Tensor) -> torch.Tensor:
        return x + (torch.rand_like(x) if own is None else torch.rand(x.shape, generator=own, device=device))

    seed = torch.manual_seed if own is None else own.manual_seed
    with Graphed(sample, example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        seed(7)
        first = [graphed(x) for _ in range(_STEPS)]
        seed(7)
        again = [graphed(x) for _ in range(_STEPS)]
        is_seeded = all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        return (_ALL_DIFFER, True, []), (_num_different(first), is_seeded, graphed.qualify().failed)


def _all_protected(device: str) -> Outcome:
    config = GraphConfig(sizes=(4,))
    by_default, by_own = _protected(device, config), _protected(device, config, own=torch.Generator(device))
    return (by_default[0], by_own[0]), (by_default[1], by_own[1])


def _unprotected(device: str) -> Outcome:
    """The draws come from generators that the graph does not know, the process's and one of the user's own: they run
    at capture and never again."""
    x = torch.zeros(4, 2, device=device)
    own = random.Random(7)
    with bare_backend(device) as backend:
        numbers = []
        for draw in (random.random, own.random):
            graph, out = record(backend, partial(_shifted, x, draw))
            steps = []
            for _ in range(_STEPS):
                graph.replay()
                steps.append(out.clone())
            numbers.append(_num_different(steps))
        assert len(set(numbers)) == 1, "the two go wrong alike"
        return _ALL_DIFFER, numbers[0]


RANDOM_DRAWS = Fault(
    row=31,
    title="random numbers: the generator's state is not advanced, or not registered, so samples repeat",
    source="PyTorch docs",
    protection="the device's generator and the user's own that warm-up runs draw from are registered with every graph "
    "and advance at each replay, and a capture may draw from no other (OST212); the engine's random numbers are drawn "
    "on the host and are inputs",
    cost="a look at an op's arguments, at warm-up and capture alone",
    plant=Plant(
        protected=_all_protected,
        traced=lambda device, partition: _protected(
            device, GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
        ),
        unprotected=_unprotected,
    ),
)
