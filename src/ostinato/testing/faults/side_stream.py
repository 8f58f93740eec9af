"""Row 20: work on a side stream that is forked and not joined, or not forked at all in this segment.

There are no streams on a CPU, so only a GPU shows it.
"""

from __future__ import annotations

import torch

from ostinato.errors import UnjoinedStreamError
from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["SIDE_STREAM"]


class _Overlapped:
    """Doubles on a side stream while the main one goes on."""

    def __init__(self, device: str, *, forks: bool, joins: bool) -> None:
        self._side = torch.cuda.Stream(device)
        self._forks = forks
        self._joins = joins
        self.doubled = torch.zeros(4, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        main = torch.cuda.current_stream()
        if self._forks:
            self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            torch.mul(x, 2, out=self.doubled)
        if self._joins:
            main.wait_stream(self._side)
        return x + 1


def _capture(device: str, *, forks: bool, joins: bool) -> None:
    program = _Overlapped(device, forks=forks, joins=joins)
    with Graphed(program, example=(torch.ones(4, device=device),), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        torch.cuda.synchronize()
        graphed.capture()


def _protected(device: str) -> Outcome:
    """Both ways are refused; a stream that is forked and joined is none of them."""
    _capture(device, forks=True, joins=True)
    refused = 0
    for forks, joins in ((True, False), (False, False)):
        try:
            _capture(device, forks=forks, joins=joins)
        except UnjoinedStreamError:
            refused += 1
    if refused == 2:
        _capture(device, forks=True, joins=False)
    return 2, refused


def _unprotected(device: str) -> Outcome:
    """The side stream is not forked: its work runs at capture, and at no replay."""
    program = _Overlapped(device, forks=False, joins=False)
    static = torch.ones(4, device=device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        program(static)
        graph.capture_end()
    static.fill_(5.0)
    graph.replay()
    torch.cuda.synchronize()
    return static * 2, program.doubled


SIDE_STREAM = Fault(
    row=20,
    title="a side stream forked and not joined, or joined only by events, or used after a break without a new fork",
    source="vllm#56785, SGLang source",
    protection="each op of a capture must run on a stream that belongs to it; what the device finds unjoined at the "
    "end of a segment is named",
    cost="one question to the driver an op, at capture alone; kernels launched by hand are not seen",
    caught_by=UnjoinedStreamError,
    devices=("cuda",),
    control_device="cuda",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
