"""The package ``breakable-cuda-graphs`` as a peer of the `segments` scenario: the same chain, recorded by it.

API: its README (github.com/meta-pytorch/breakable-cuda-graphs). CUDA only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["record_chain"]


def record_chain(num_segments: int, *, has_kernel: bool, device: torch.device) -> Callable[[], Any]:
    """A function that replays ``num_segments`` segments of one kernel with a break after each but the last.

    Args:
        has_kernel: a break launches one kernel; otherwise it does nothing.
    """
    from breakable_cuda_graphs import BreakableCUDAGraph, breakable_graph, no_graph

    def between(hidden: Tensor) -> None:
        if has_kernel:
            hidden.mul_(1.0)

    marked = no_graph(between)
    state = torch.zeros(8, 64, device=device)

    def chain() -> None:
        for index in range(num_segments):
            state.add_(1.0)
            if index < num_segments - 1:
                marked(state)

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        chain()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = BreakableCUDAGraph()
    with breakable_graph(graph):
        chain()
    return graph.replay  # type: ignore[no-any-return]
