"""Row 28: the garbage collector runs a finaliser in the middle of a capture, and the graph holds its work too."""

from __future__ import annotations

import gc

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["COLLECTED_IN_CAPTURE"]

_NUM_CONTAINERS = 20_000  # more than any Python lets pile up before it collects
_STEPS = 3


class _Resource:
    """In a cycle, so that only the collector finds it; its finaliser works on the device, as one that frees may."""

    def __init__(self, total: torch.Tensor) -> None:
        self.myself = self
        self._total = total

    def __del__(self) -> None:
        self._total.add_(1)


class _Program:
    def __init__(self, device: str) -> None:
        self.total = torch.zeros((), device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        _Resource(self.total)
        kept = [[index] for index in range(_NUM_CONTAINERS)]
        return x + len(kept[0])


def _protected(device: str) -> Outcome:
    program = _Program(device)
    x = torch.ones(4, device=device)
    with Graphed(program, example=(x,), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        gc.collect()  # what has piled up is finalised here, eagerly
        program.total.zero_()
        for _ in range(_STEPS):
            graphed(x)
        return 0.0, program.total.item()


def _unprotected(device: str) -> Outcome:
    program = _Program(device)
    x = torch.ones(4, device=device)
    was_enabled = gc.isenabled()

    def collecting() -> torch.Tensor:
        gc.enable()  # the backend's own phase has switched it off
        try:
            return program(x)
        finally:
            gc.disable()

    try:
        with bare_backend(device) as backend:
            graph, _ = record(backend, collecting)
            gc.collect()
            program.total.zero_()
            for _ in range(_STEPS):
                graph.replay()
            return 0.0, program.total.item()
    finally:
        if was_enabled:
            gc.enable()


COLLECTED_IN_CAPTURE = Fault(
    row=28,
    title="GC frees a kernel module, or runs a finaliser, in the middle of a capture",
    source="vLLM source",
    protection="the collector is off and the heap frozen as long as the capture phase is open",
    cost="one collection before the captures, mostly of young garbage between steps; garbage stays until they are done",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
