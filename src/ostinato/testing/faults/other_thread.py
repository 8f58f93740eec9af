"""Row 21: another thread uses the device while a capture is open, and the capture dies of it.

On the simulated backend the other thread's work must not be recorded; that it kills a capture in the global error
mode, only a GPU shows.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.runtime.capture import select_backend
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["OTHER_THREAD"]

_CONTROL = """
import threading
import torch

x = torch.ones(4, device="cuda")
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

def elsewhere():
    try:
        torch.ones(1 << 24, device="cuda").sum().item()
    except RuntimeError:
        pass

torch.cuda.synchronize()
try:
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="global")
        y = x + 1
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        graph.capture_end()
    print("captured")
except RuntimeError:
    print("killed")
"""


class _Watched:
    """In each run, also in the captured one, another thread allocates, computes and waits for the device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.sums: list[float] = []

    def elsewhere(self) -> None:
        self.sums.append(torch.ones(8, device=self._device).sum().item())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        h = x + 1
        thread = threading.Thread(target=self.elsewhere)
        thread.start()
        thread.join()
        return h * 2


def _protected(device: str) -> Outcome:
    program = _Watched(device)
    x = torch.ones(4, device=device)
    with Graphed(program, example=(x,), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        report = graphed.capture()
        num_sums = len(program.sums)
        is_right = bool(graphed(x * 3).eq(8).all())
        num_nodes = sum(plan.num_nodes for plan in graphed.plans.values())
        # Two ops, none of the other thread's; and a replay starts no thread.
        return (0, 2, True, num_sums), (len(report.failed), num_nodes, is_right, len(program.sums))


def _unprotected(device: str) -> Outcome:
    """In a process of its own: a capture that was killed leaves torch's generators marked as capturing."""
    select_backend(device).close()  # says so plainly if there is no such device
    done = subprocess.run([sys.executable, "-c", _CONTROL], capture_output=True, text=True, check=True, timeout=300)
    return "captured", done.stdout.strip()


OTHER_THREAD = Fault(
    row=21,
    title="another thread's CUDA call kills a capture under the global error mode",
    source="vllm#46253",
    protection="captures use the thread-local error mode, and ops are recorded on the capturing thread alone",
    cost="none",
    control_device="cuda",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
