"""Row 5: a break's argument is only weakly held, and its storage is reused by a later, smaller bucket.

The argument is a table that lies outside the segment's own work, made anew before each bucket is captured.
"""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed, GraphKey, graph_break
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["WEAK_ARGUMENT"]

_SIZES = (8, 4)
_WIDTH = 256


class _Tables:
    """Adds the bucket's table, full of the bucket's size, in a break."""

    def __init__(self, device: str) -> None:
        self.table = torch.zeros(_WIDTH, device=device)
        self._device = device
        self._break = graph_break(self.add)

    def build(self, key: GraphKey) -> None:
        """The table of one bucket; the one of the bucket before is dropped."""
        self.table = torch.full((_WIDTH,), float(key.num_tokens), device=self._device)

    def add(self, h: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return h + table

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._break(x * 2, self.table) * 1


def _expected(device: str) -> torch.Tensor:
    return torch.full((7, _WIDTH), 10.0, device=device)  # 7 rows run in the bucket of 8


def _protected(device: str, partition: str) -> Outcome:
    program = _Tables(device)
    example = torch.ones(max(_SIZES), _WIDTH, device=device)
    config = GraphConfig(mode="piecewise", partition=partition, sizes=_SIZES, ownership="recycled")
    with Graphed(program, example=(example,), config=config, prepare=program.build) as graphed:
        graphed.warm_up()
        graphed.capture()
        litter = [torch.full((_WIDTH,), 1e9, device=device) for _ in range(64)]  # takes what memory was let go of
        got = graphed(example[:7])
        del litter
        return _expected(device), got


def _unprotected(device: str) -> Outcome:
    """Each bucket's table is made by a segment that runs once, before serving, and only its address is kept."""
    x = torch.ones(max(_SIZES), _WIDTH, device=device)
    tables = {}
    graphs = {}
    with bare_backend(device) as backend:
        for size in _SIZES:
            with backend.phase(), backend.session():
                backend.begin()
                table = torch.full((_WIDTH,), float(size), device=device)
                once = backend.end()
                tables[size] = backend.borrow(table)
                once.replay()
                del table
            graphs[size] = (once, *record(backend, lambda rows=size: x[:rows] * 2))  # type: ignore[misc]
        _, graph, h = graphs[8]
        graph.replay()
        return _expected(device), (h + tables[8])[:7]


WEAK_ARGUMENT = Fault(
    row=5,
    title="a break argument is only weakly held; its storage is reused by a later, smaller bucket",
    source="sglang#37606, #37448",
    protection="a plan holds the arguments of its breaks; recycled, all but those that its own segments rewrite",
    cost='the bytes of all arguments a key; with `ownership="recycled"` of those that no segment rewrites',
    plant=Plant(
        protected=lambda device: _protected(device, "breakable"),
        traced=_protected,
        unprotected=_unprotected,
    ),
)
