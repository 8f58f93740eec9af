"""Row 7: a workspace that kernels share grows after capture, and the graph goes on using the old memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.errors import WorkspaceGrowthError
from ostinato.runtime import GraphConfig, Graphed, Workspace, opaque_op
from ostinato.runtime.capture import CaptureBackend, CapturedGraph
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["GROWN_WORKSPACE"]

_BUCKET, _LONG = 4, 4096


class _Growing:
    """As often written by hand: one tensor, replaced by a larger one when somebody needs it."""

    def __init__(self, device: str) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def reserve(self, num_bytes: int) -> torch.Tensor:
        if num_bytes > self.memory.numel():
            self.memory = torch.empty(num_bytes, dtype=torch.uint8, device=self.memory.device)
        return self.memory[:num_bytes]


def _doubled(x: torch.Tensor, reserve: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """A kernel that writes partial results into the workspace, and one that reads them."""
    parts = reserve(x.numel() * x.element_size()).view(x.dtype)
    return torch.add(x, x, out=parts) + 0


def _protected(device: str, partition: str) -> Outcome:
    workspace = Workspace("partial results", device=device)

    @opaque_op(fake=torch.empty_like)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return _doubled(x, workspace.reserve)

    x = torch.ones(_BUCKET, device=device)
    config = GraphConfig(mode="piecewise", partition=partition, sizes=(_BUCKET,))
    with Graphed(lambda t: doubled(t), example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        graphed(x)
        doubled(torch.ones(_LONG, device=device))  # a step that runs eagerly needs more
        return x * 2, graphed(x)


def _unprotected(device: str) -> Outcome:
    workspace = _Growing(device)
    x = torch.ones(_BUCKET, device=device)
    with bare_backend(device) as backend:
        _doubled(x, workspace.reserve)  # warm-up
        writes, reads, out = _two_segments(backend, x, workspace)
        writes.replay()
        # What runs between the segments needs more: the old memory is anybody's now.
        _doubled(torch.ones(_LONG, device=device), workspace.reserve)
        reads.replay()
        return x * 2, out


def _two_segments(
    backend: CaptureBackend, x: torch.Tensor, workspace: _Growing
) -> tuple[CapturedGraph, CapturedGraph, torch.Tensor]:
    """One that writes partial results, and one that reads them."""
    parts = workspace.memory.view(x.dtype)
    writes, _ = record(backend, lambda: torch.add(x, x, out=parts))
    reads, out = record(backend, lambda: parts + 0)
    return writes, reads, out


GROWN_WORKSPACE = Fault(
    row=7,
    title="a shared workspace grows after capture and moves",
    source="TensorRT-LLM#16319, vllm#55336",
    protection="a `Workspace` may not grow once a graph has its address; the engine's own are sized before capture",
    cost="two comparisons a request on the host",
    caught_by=WorkspaceGrowthError,
    caught_when_traced=WorkspaceGrowthError,
    plant=Plant(
        protected=lambda device: _protected(device, "breakable"),
        traced=_protected,
        unprotected=_unprotected,
    ),
)
