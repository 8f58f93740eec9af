"""Row 20: work on a side stream that is forked and not joined, or not forked at all in this segment.

Streams of `torch.cpu` order nothing, so only on a GPU does the program without protection go wrong.
"""

from __future__ import annotations

import torch

from ostinato.errors import UnjoinedStreamError
from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["SIDE_STREAM"]


class _Overlapped:
    """Doubles on a side stream while the main one goes on. It forks by `wait_stream` and joins by an event."""

    def __init__(self, device: str, *, forks: bool, joins: bool) -> None:
        self._streams = torch.get_device_module(device)
        self._side = self._streams.Stream()
        self._forks = forks
        self._joins = joins
        self.doubled = torch.zeros(4, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        main = self._streams.current_stream()
        if self._forks:
            self._side.wait_stream(main)
        with self._streams.stream(self._side):
            torch.mul(x, 2, out=self.doubled[: x.shape[0]])
        if self._joins:
            done = self._streams.Event()
            done.record(self._side)
            main.wait_event(done)
        return x + 1


def _capture(device: str, *, forks: bool, joins: bool) -> None:
    program = _Overlapped(device, forks=forks, joins=joins)
    with Graphed(program, example=(torch.ones(4, device=device),), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        torch.get_device_module(device).synchronize()
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
    protection="forks and joins are followed through `wait_stream`, events and chains; at a segment's end a stream "
    "with work left is named with the line that forked it, and so is one that was never forked",
    cost="one question to the driver an op and a wait, at capture alone; of kernels launched by hand and waits in C++ "
    "the device tells, and all forks are named",
    caught_by=UnjoinedStreamError,
    control_device="cuda",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
