"""Rows 3 and 4: what a break returns lies elsewhere, or looks different, than at capture."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.errors import BreakOutputError
from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["CHANGED_BREAK_OUTPUT", "FRESH_BREAK_OUTPUT"]


class _Program:
    """``break(x + 1)`` summed over rows. The break keeps all it returns, so each result has a new address."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.compute = compute
        self._kept: list[torch.Tensor] = []
        self._break = graph_break(self.between)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def between(self, h: torch.Tensor) -> torch.Tensor:
        self._kept.append(self.compute(h))
        return self._kept[-1]

    def after(self, h: torch.Tensor) -> torch.Tensor:
        return h.sum(0)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self._break(self.before(x)))


def _ten_times(h: torch.Tensor) -> torch.Tensor:
    return h * 10


def _mean_row(h: torch.Tensor) -> torch.Tensor:
    return h.mean(0, keepdim=True)


def _protected(device: str, partition: str, later: Callable[[torch.Tensor], torch.Tensor]) -> Outcome:
    program = _Program(_ten_times)
    x = torch.ones(4, 2, device=device)
    config = GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
    with Graphed(program.whole, example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        program.compute = later
        return program.whole(x * 3), graphed(x * 3)


def _unprotected(device: str, later: Callable[[torch.Tensor], torch.Tensor], *, copies: bool) -> Outcome:
    program = _Program(_ten_times)
    x = torch.ones(4, 2, device=device)
    with bare_backend(device) as backend:
        first, h = record(backend, lambda: program.before(x))
        handed = program.between(h)
        second, out = record(backend, lambda: program.after(handed))
        program.compute = later
        x.fill_(3.0)
        first.replay()
        result = program.between(h)
        if copies:
            handed.copy_(result)  # broadcasts one row to all without a word
        second.replay()
        return program.whole(x), out


FRESH_BREAK_OUTPUT = Fault(
    row=3,
    title="a break returns a fresh tensor; the next segment reads the captured one",
    source="vllm#53915, TensorRT-LLM#13354",
    protection="what a break returns is copied into a bridge, at the address that the next segment has",
    cost="one copy of a fresh result a break and step; its bytes once",
    plant=Plant(
        protected=lambda device: _protected(device, "breakable", _ten_times),
        traced=lambda device, partition: _protected(device, partition, _ten_times),
        unprotected=lambda device: _unprotected(device, _ten_times, copies=False),
    ),
)
CHANGED_BREAK_OUTPUT = Fault(
    row=4,
    title="a break returns another shape, dtype or rank than at capture",
    source="SGLang source",
    protection="what a break returns is compared with what it returned at capture",
    cost="a few comparisons on the host a break and step",
    caught_by=BreakOutputError,
    caught_when_traced=BreakOutputError,
    plant=Plant(
        protected=lambda device: _protected(device, "breakable", _mean_row),
        traced=lambda device, partition: _protected(device, partition, _mean_row),
        unprotected=lambda device: _unprotected(device, _mean_row, copies=True),
    ),
)
