"""Row 23: each failed capture leaves its memory behind, again and again."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["FAILED_CAPTURES"]

_ROWS, _WIDTH, _TRIES = 64, 1024, 5


def _failing(x: torch.Tensor) -> torch.Tensor:
    """Fails in a capture of the large bucket, with intermediates alive."""
    h = x + 1
    if x.shape[0] == _ROWS:
        return h * h.sum().item()
    return h * 2


def _protected(device: str) -> Outcome:
    example = torch.ones(_ROWS, _WIDTH, device=device)
    reserved, reports = [], []
    config = GraphConfig(sizes=(1, _ROWS))
    with Graphed(_failing, example=(example,), config=config) as graphed:
        graphed.warm_up()
        reports.append(graphed.capture())
        for _ in range(_TRIES):
            reserved.append(graphed.backend.memory().reserved_bytes)
            reports.append(graphed.recapture())  # whoever keeps the errors keeps no memory
        num_failed = [len(report.failed) for report in reports]
        return ([1] * (1 + _TRIES), False), (num_failed, _grows(reserved))


def _unprotected(device: str) -> Outcome:
    """The errors are kept for a report, and in them the frames with all that was alive."""
    x = torch.ones(_ROWS, _WIDTH, device=device)
    reserved, errors = [], []
    with bare_backend(device) as backend:
        for _ in range(_TRIES):
            try:
                record(backend, lambda: _failing(x))
            except Exception as error:
                errors.append(error)
            reserved.append(backend.memory().reserved_bytes)
        errors.clear()
    return False, _grows(reserved)


def _grows(reserved: list[int]) -> bool:
    """Whether the pool has grown by more than what one failed capture had alive."""
    return reserved[-1] - reserved[0] > _ROWS * _WIDTH * 4


FAILED_CAPTURES = Fault(
    row=23,
    title="a failed capture leaks its pool, again and again",
    source="pytorch#190348",
    protection="a capture is all or nothing: its graph is destroyed, and the errors that a report keeps hold no frames",
    cost="none",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
