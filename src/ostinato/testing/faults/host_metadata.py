"""Row 9: host values that a metadata step reads freeze at capture; here the lengths of the sequences."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["HOST_METADATA"]

_ROWS = 4


class _Masked:
    """Keeps the first ``length`` rows. The mask is built on the host, by a step that reads the lengths there."""

    def __init__(self, device: str) -> None:
        self.length = _ROWS
        self._device = device
        self._break = graph_break(self.build)

    def build(self) -> torch.Tensor:
        """[_ROWS] float32 mask of the present step."""
        return torch.tensor([float(row < self.length) for row in range(_ROWS)]).to(self._device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        mask = self._break()
        return x * mask[: x.shape[0], None]


def _protected(device: str, partition: str) -> Outcome:
    program = _Masked(device)
    x = torch.ones(_ROWS, 2, device=device)
    config = GraphConfig(mode="piecewise", partition=partition, sizes=(_ROWS,))
    with Graphed(program, example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        program.length = 2
        return program(x), graphed(x)


def _unprotected(device: str) -> Outcome:
    program = _Masked(device)
    x = torch.ones(_ROWS, 2, device=device)
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: program(x))
        program.length = 2
        graph.replay()
        return program(x), out


HOST_METADATA = Fault(
    row=9,
    title="host values that a metadata step reads freeze at capture",
    source="sglang#39825",
    protection="a metadata step is a break: it runs on the host at every replay",
    cost="one more segment to launch",
    plant=Plant(
        protected=lambda device: _protected(device, "breakable"),
        traced=_protected,
        unprotected=_unprotected,
    ),
)
