"""Row 1: an input's new tensor is passed, and the graph reads the old address."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["NEW_INPUT"]


def _program(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def _protected(device: str) -> Outcome:
    first, second = torch.ones(4, 2, device=device), torch.full((4, 2), 5.0, device=device)
    with Graphed(_program, example=(first,), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        graphed(first)
        return _program(second), graphed(second)


def _unprotected(device: str) -> Outcome:
    inputs = {"x": torch.ones(4, 2, device=device)}
    old = inputs["x"]  # the old tensor lives on: the read is stale, but no crash
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: _program(inputs["x"]))
        inputs["x"] = torch.full((4, 2), 5.0, device=device)
        graph.replay()
        assert old.data_ptr() != inputs["x"].data_ptr()
        return _program(inputs["x"]), out


NEW_INPUT = Fault(
    row=1,
    title="a new input tensor is passed; the graph reads the old address",
    source="vllm#37363",
    protection="every input is copied into a static buffer whose address the graph has",
    cost="one copy of the inputs a step",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
