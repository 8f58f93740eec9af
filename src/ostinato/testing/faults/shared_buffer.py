"""Row 34: a draft and a target model share a buffer, and one overwrites what the other is about to read."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["SHARED_BUFFER"]

_ROWS = 4


def _draft(x: torch.Tensor) -> torch.Tensor:
    return x * 10


def _target(x: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    return x + draft


def _steps(device: str) -> list[torch.Tensor]:
    return [torch.full((_ROWS,), float(step), device=device) for step in (1, 2)]


def _expected(device: str) -> torch.Tensor:
    """The target looks at the first step once the draft has run ahead to the second."""
    first, second = _steps(device)
    return _target(first, _draft(second))


def _protected(device: str) -> Outcome:
    first, second = _steps(device)
    config = GraphConfig(sizes=(_ROWS,), outputs="view")
    with (
        Graphed(_draft, example=(first,), config=config) as draft,
        Graphed(_target, example=(first, first), config=config) as target,
    ):
        for graphed in (draft, target):
            graphed.warm_up()
            graphed.capture()
        target.buffers.views({"num_tokens": _ROWS, "num_reqs": _ROWS})["x"].copy_(first)
        drafted = draft(second)  # a view into the draft's graph
        return _expected(device), target(first, drafted)


def _unprotected(device: str) -> Outcome:
    first, second = _steps(device)
    shared = first.clone()
    with bare_backend(device) as backend:
        draft, drafted = record(backend, lambda: _draft(shared))
        target, out = record(backend, lambda: _target(shared, drafted))
        shared.copy_(first)  # the target's input is written early
        shared.copy_(second)  # the draft's
        draft.replay()
        target.replay()
        return _expected(device), out


SHARED_BUFFER = Fault(
    row=34,
    title="draft and target share a buffer that one of them overwrites",
    source="vllm PR #53520",
    protection="each `Graphed` has static buffers of its own, and outputs of a plan are held until it is closed",
    cost="the static buffers of each callable",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
