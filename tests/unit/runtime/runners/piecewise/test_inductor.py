"""Inductor's code for traced callables, on the CPU and without graphs: only that it computes what eager does.

Graphs of such code need a device; tests/equivalence/test_partitions.py has those.
"""

import contextlib

import pytest
import torch

from ostinato.runtime import RuntimeMode, graph_break, opaque_op
from ostinato.runtime.breaks import call_break, handling_breaks
from ostinato.runtime.keys import Compiler, GraphKey, Partition
from ostinato.runtime.runners import BoundCall, BreakableRunner, FullRunner
from ostinato.runtime.runners.piecewise import CompiledRunner

pytestmark = pytest.mark.slow


class NoGraphs:
    """A backend that records nothing: enough for warm-up."""

    name = "none"

    def session(self):
        return contextlib.nullcontext()


@graph_break
def mix(h):
    return torch.cumsum(h, -1)


@graph_break
def strided(h):
    return h.repeat(1, 2).t().contiguous().t()  # not contiguous, as the fake does not know


@graph_break(mutates=("out",))
def attend(h, out, scale: float):
    out.copy_(h * scale)


@opaque_op(fake=lambda x: torch.empty_like(x))
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        h = mix(x + 1) * torch.sigmoid(x)
        out = torch.empty_like(h)
        attend(h.relu(), out, 0.5)
        h = self.down(torch.nn.functional.silu(self.up(doubled(out) + h)))
        return strided(h)[:, :16] + x, h.sum(0), x.shape[0]


@pytest.mark.parametrize(
    ("partition", "compiler", "inner"),
    [
        (Partition.FX, Compiler.INDUCTOR, BreakableRunner),
        (Partition.INDUCTOR, Compiler.NONE, BreakableRunner),
        (Partition.INDUCTOR, Compiler.NONE, FullRunner),
    ],
)
@torch.no_grad()
def test_compiled_code_computes_what_eager_does(partition, compiler, inner):
    torch.manual_seed(0)
    net = Net()
    backend = NoGraphs()
    runner = CompiledRunner(backend, inner(backend), partition=partition, compiler=compiler)
    calls = {rows: BoundCall(net, (torch.randn(rows, 16),), {}) for rows in (8, 4, 1)}
    for _ in range(3):
        for rows, call in calls.items():
            got = runner.warm_up(GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=rows), call)
            want = net(call.args[0])
            torch.testing.assert_close(got[:2], want[:2], rtol=1e-4, atol=1e-5)
            assert got[2] == rows
    key = GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=8)
    bound = runner._bind(runner._programs[runner._group(key, calls[8])], calls[8])
    met = []

    class Handler:
        def run_break(self, point, args, kwargs):
            met.append(point.name)
            with handling_breaks(None):
                return call_break(point, args, kwargs)

    with handling_breaks(Handler()):
        bound()
    assert met == ["mix", "attend", "strided"], "all breaks, in order"
