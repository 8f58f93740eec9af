"""Row 24: an uncaptured key is captured in the middle of serving, and its warm-up touches live state."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.runtime.capture import CapturedGraph
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["SERVING_CAPTURE"]

_TRAFFIC = (2, 2, 3, 2, 3)  # rows of each step; 3 has no graph
_EXPECTED = float(sum(_TRAFFIC))


class _Counting:
    """State that every step advances by its rows, as a KV cache or a sampler's state is."""

    def __init__(self, device: str) -> None:
        self.total = torch.zeros((), device=device)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return self.total.add_(x.sum()) + 0


def _protected(device: str) -> Outcome:
    state = _Counting(device)
    with Graphed(state.step, example=(torch.ones(2, device=device),), config=GraphConfig(sizes=(2,))) as graphed:
        graphed.warm_up()  # on zeros, before there is any state to harm
        graphed.capture()
        num_graphs = graphed.backend.memory().num_graphs
        for rows in _TRAFFIC:
            graphed(torch.ones(rows, device=device))
        return (_EXPECTED, num_graphs), (state.total.item(), graphed.backend.memory().num_graphs)


def _unprotected(device: str) -> Outcome:
    state = _Counting(device)
    graphs: dict[int, CapturedGraph] = {}
    with bare_backend(device) as backend:

        def serve(rows: int) -> None:
            x = inputs[rows]
            if rows not in graphs:
                warmed: Callable[[], torch.Tensor] = lambda: state.step(x)  # noqa: E731
                warmed()
                graphs[rows] = record(backend, warmed)[0]
            graphs[rows].replay()

        inputs = {rows: torch.ones(rows, device=device) for rows in set(_TRAFFIC)}
        serve(2)  # before serving
        state.total.zero_()
        for rows in _TRAFFIC:
            serve(rows)
        return _EXPECTED, state.total.item()


SERVING_CAPTURE = Fault(
    row=24,
    title="an uncaptured key is captured in the middle of serving",
    source="vLLM source",
    protection="captures begin inside the capture phase alone; a size without a graph runs eagerly, with a reason",
    cost="none",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
