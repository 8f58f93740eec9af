"""Row 8: a host number is baked into the graph, but is not in the key; here the offset at which a step writes."""

from __future__ import annotations

import torch

from ostinato.errors import FrozenValueError, UntraceableError
from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["BAKED_NUMBER"]

_ROWS, _STEPS = 2, 3


class _Log:
    """Each step appends its rows where the last one ended."""

    def __init__(self, device: str) -> None:
        self.rows = torch.zeros(16, device=device)
        self.end = 0
        self._break = graph_break(self._write)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        self._break(h, self.end)
        self.end += _ROWS
        return h + 1

    def _write(self, h: torch.Tensor, at: int) -> None:
        self.rows[at : at + _ROWS] = h

    def reset(self) -> None:
        """Empty again."""
        self.rows.zero_()
        self.end = 0


def _inputs(device: str) -> list[torch.Tensor]:
    return [torch.full((_ROWS,), float(step + 1), device=device) for step in range(_STEPS)]


def _expected(device: str) -> torch.Tensor:
    log = _Log(device)
    for x in _inputs(device):
        log.step(x)
    return log.rows


def _protected(device: str, partition: str) -> Outcome:
    log = _Log(device)
    config = GraphConfig(mode="piecewise", partition=partition, sizes=(_ROWS,))
    with Graphed(log.step, example=(torch.ones(_ROWS, device=device),), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        log.reset()
        for x in _inputs(device):
            graphed(x)
        return _expected(device), log.rows


def _unprotected(device: str) -> Outcome:
    log = _Log(device)
    static = torch.ones(_ROWS, device=device)
    with bare_backend(device) as backend:
        log.step(static)
        graph, _ = record(backend, lambda: log.step(static))
        log.reset()
        for x in _inputs(device):
            static.copy_(x)
            graph.replay()
    return _expected(device), log.rows


BAKED_NUMBER = Fault(
    row=8,
    title="a host number (max length, offset, page count) is baked but is not in the key",
    source="transformers#45323",
    protection="a break's argument that is no tensor must be the same in each run; `qualify` finds other baked numbers",
    cost="comparisons at capture alone",
    caught_by=FrozenValueError,
    caught_when_traced=UntraceableError,
    plant=Plant(
        protected=lambda device: _protected(device, "breakable"),
        traced=_protected,
        unprotected=_unprotected,
    ),
)
