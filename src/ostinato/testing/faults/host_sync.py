"""Row 19: the host reads a value in a capture, and the graph keeps it for good."""

from __future__ import annotations

import ctypes

import torch

from ostinato.errors import HostSyncError, UntraceableError
from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["HOST_SYNC"]


def _normalise(x: torch.Tensor) -> torch.Tensor:
    return x / x.max().item()


def _normalise_unseen(x: torch.Tensor) -> torch.Tensor:
    """The same, with a read that no dispatcher sees, as in a C extension."""
    return x / ctypes.c_float.from_address(x.max().data_ptr()).value


def _protected(device: str, config: GraphConfig) -> Outcome:
    x = torch.arange(8.0, device=device).view(4, 2)
    with Graphed(_normalise, example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        return _normalise(x), graphed(x)


def _unprotected(device: str) -> Outcome:
    """For host memory only: a device would fault on the read."""
    x = torch.arange(8.0, device=device).view(4, 2)
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: _normalise_unseen(x))
        x.mul_(100.0)
        graph.replay()
        return _normalise(x), out


HOST_SYNC = Fault(
    row=19,
    title=".item(), .tolist(), .cpu(), nonzero, print(tensor) during capture",
    source="all of them",
    protection="each op of a capture is judged before it runs, and the error names the user's line",
    cost="a look-up an op, at capture alone",
    caught_by=HostSyncError,
    caught_when_traced=UntraceableError,
    plant=Plant(
        protected=lambda device: _protected(device, GraphConfig(sizes=(4,))),
        traced=lambda device, partition: _protected(
            device, GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
        ),
        unprotected=_unprotected,
    ),
)
