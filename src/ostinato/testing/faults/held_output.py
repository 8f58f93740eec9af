"""Row 6: a graph's output is overwritten by the next replay while the caller still holds it."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["HELD_OUTPUT"]


def _program(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _protected(device: str) -> Outcome:
    x = torch.ones(4, 2, device=device)
    with Graphed(_program, example=(x,), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        held = graphed(x)
        graphed(x * 50)
        return _program(x), held


def _unprotected(device: str) -> Outcome:
    x = torch.ones(4, 2, device=device)
    with bare_backend(device) as backend:
        graph, held = record(backend, lambda: _program(x))
        graph.replay()
        expected = _program(x)
        x.fill_(50.0)
        graph.replay()
        return expected, held


HELD_OUTPUT = Fault(
    row=6,
    title="a graph output is overwritten by the next replay while the caller still holds it",
    source="TensorRT-LLM#17010",
    protection="outputs are copied for the caller; a view, if it asks for one, refuses to be used after a later replay",
    cost='one copy of the outputs a step; with `outputs="view"` a check at each use instead',
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
