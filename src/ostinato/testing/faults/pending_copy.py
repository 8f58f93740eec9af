"""Row 32: the host rewrites a pinned buffer while the copy of the step before is still pending."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.runtime import GraphConfig, Graphed, Slot
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["PENDING_COPY"]

_ROWS, _STEPS = 4, 6
_BUSY_CYCLES = 20_000_000  # some ten milliseconds, in which the host assembles all steps


def _program(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _expected() -> torch.Tensor:
    return torch.stack([torch.full((_ROWS,), step + 1.0) for step in range(_STEPS)])


def _protected(device: str) -> Outcome:
    slots = {"x": Slot(shape=(None,), dtype=torch.float32)}
    with Graphed(_program, slots=slots, device=device, config=GraphConfig(sizes=(_ROWS,), max_size=_ROWS)) as graphed:
        graphed.warm_up()
        graphed.capture()
        staging = graphed.staging()
        decision = graphed.explain(torch.zeros(_ROWS, device=device))
        sizes = graphed.sizes(decision)
        if device == "cuda":
            torch.cuda._sleep(_BUSY_CYCLES)
        steps = []
        for step in range(_STEPS):
            staging.open(sizes)["x"].fill_(step)
            staging.upload(sizes)
            steps.append(graphed.run(decision))
        return _expected(), torch.stack(steps).cpu()


def _unprotected(device: str) -> Outcome:
    """A device that is one step behind: what the host asks for now runs when the next step has been asked for."""
    static, pinned = torch.zeros(_ROWS, device=device), torch.zeros(_ROWS)
    queue: list[Callable[[], None]] = []
    steps: list[torch.Tensor] = []
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: _program(static))

        def run() -> None:
            static.copy_(pinned)
            graph.replay()
            steps.append(out.clone())

        for step in range(_STEPS):
            pinned.fill_(step)  # one buffer, and nobody asks whether it is free
            queue.append(run)
            if len(queue) > 1:
                queue.pop(0)()
        for pending in queue:
            pending()
    return _expected(), torch.stack(steps).cpu()


PENDING_COPY = Fault(
    row=32,
    title="an async copy from a pinned buffer is still pending when the host rewrites it",
    source="vllm PR #54269",
    protection="steps are assembled in a ring of pinned buffers; one is opened again only when its copy has run",
    cost="two pinned copies of the static buffers; one event a step",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
