"""Row 18: a kernel compiles or tunes itself for the first time in a capture, and the graph holds its trials too."""

from __future__ import annotations

import itertools

import torch

from ostinato.errors import JitInCaptureError
from ostinato.runtime import GraphConfig, Graphed, jit_mark, opaque_op
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["FIRST_JIT"]

_serial = itertools.count()


class _TunedAdd:
    """``total += x.sum()`` by a kernel that tries three configurations on the real data when it is new."""

    def __init__(self) -> None:
        self._name = f"ostinato.testing.tuned_add.{next(_serial)}"
        self._is_tuned = False

    def forget(self) -> None:
        """New again: a specialisation that warm-up did not meet."""
        self.__init__()  # type: ignore[misc]

    def __call__(self, total: torch.Tensor, x: torch.Tensor) -> None:
        if not self._is_tuned:
            jit_mark(self._name)
            for _ in range(3):
                total.add_(x.sum())
            self._is_tuned = True
        total.add_(x.sum())


def _protected(device: str, partition: str) -> Outcome:
    kernel = _TunedAdd()
    total = torch.zeros((), device=device)

    @opaque_op(mutates=("total",))
    def tuned_add(total: torch.Tensor, x: torch.Tensor) -> None:
        kernel(total, x)

    def program(x: torch.Tensor) -> torch.Tensor:
        tuned_add(total, x)
        return x + total

    config = GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
    with Graphed(program, example=(torch.ones(4, device=device),), config=config) as graphed:
        graphed.warm_up()
        kernel.forget()
        graphed.capture()
        total.zero_()
        graphed(torch.ones(4, device=device))
        return torch.tensor(4.0), total


def _unprotected(device: str) -> Outcome:
    """The same kernel, whose author has not marked it."""
    x, total = torch.ones(4, device=device), torch.zeros((), device=device)
    kernel = _TunedAdd()
    jit_mark(kernel._name)  # met before, as far as the mark can tell
    with bare_backend(device) as backend:
        graph, _ = record(backend, lambda: kernel(total, x))
        total.zero_()
        graph.replay()
    return torch.tensor(4.0), total


FIRST_JIT = Fault(
    row=18,
    title="JIT, autotune or module load during capture",
    source="PyTorch docs",
    protection="`jit_mark` refuses a first compilation in a capture, and Triton is asked to tell of any other; warm-up "
    "runs every key before any is captured",
    cost="a set look-up a mark; Triton's hook is in place at capture alone",
    caught_by=JitInCaptureError,
    caught_when_traced=JitInCaptureError,
    plant=Plant(
        protected=lambda device: _protected(device, "breakable"),
        traced=_protected,
        unprotected=_unprotected,
    ),
)
