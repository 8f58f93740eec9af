"""Row 17: warm-up flips a lazy flag, so that capture skips kernels which it should have recorded."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["LAZY_FLAG"]


class _Shifted:
    """Subtracts the largest number of the batch, which the first call of each step computes."""

    def __init__(self, device: str) -> None:
        self.peak = torch.ones((), device=device)
        self.has_peak = False

    def forget(self) -> None:
        """Before each step; a graph has to hold the kernels as a fresh step runs them."""
        self.has_peak = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.has_peak:
            self.peak.copy_(x.max())
            self.has_peak = True
        return x - self.peak  # exact, however it is compiled


def _steps(device: str) -> list[torch.Tensor]:
    return [torch.arange(8.0, device=device).view(4, 2) * factor + 1 for factor in (1.0, 10.0)]


def _expected(device: str) -> torch.Tensor:
    fresh = _Shifted(device)
    return fresh(_steps(device)[-1])


def _protected(device: str, config: GraphConfig) -> Outcome:
    program = _Shifted(device)
    example = _steps(device)[0]
    with Graphed(program, example=(example,), config=config, after_warm_up=program.forget) as graphed:
        graphed.warm_up()
        graphed.capture()
        got = [graphed(x) for x in _steps(device)]
        return _expected(device), got[-1]


def _unprotected(device: str) -> Outcome:
    program = _Shifted(device)
    static = _steps(device)[0].clone()
    with bare_backend(device) as backend:
        program(static)  # warm-up
        graph, out = record(backend, lambda: program(static))
        static.copy_(_steps(device)[-1])
        graph.replay()
        return _expected(device), out


LAZY_FLAG = Fault(
    row=17,
    title="warm-up flips a lazy-initialised flag, so capture skips kernels it should have recorded",
    source="vllm PR #42444",
    protection="`after_warm_up` undoes what warm-up changed, before any capture and before each trace",
    cost="one call at start",
    plant=Plant(
        protected=lambda device: _protected(device, GraphConfig(sizes=(4,))),
        traced=lambda device, partition: _protected(
            device, GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
        ),
        unprotected=_unprotected,
    ),
)
