"""What Inductor's code allocates in a capture, past torch's dispatcher, is recycled like all that segments make."""

from __future__ import annotations

import gc

import pytest
import torch

from ostinato.runtime import GraphConfig, Graphed, graph_break

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WIDTH = 1024
SIZES = (512, 1024, 1536, 2048)


@graph_break
def mix(h):
    return torch.cumsum(h, -1) / WIDTH


@graph_break(mutates=("out",))
def attend(q, k, out):
    torch.mul(q, k, out=out)


class Chain(torch.nn.Module):
    """Layers of products and fused arithmetic, each with two breaks."""

    def __init__(self, num_layers=8):
        super().__init__()
        torch.manual_seed(0)
        self.ins = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 2 * WIDTH) for _ in range(num_layers))
        self.outs = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))

    def forward(self, x):
        h = x
        for up, down in zip(self.ins, self.outs, strict=True):
            q, k = up(torch.tanh(h) * 0.5 + 0.25).chunk(2, -1)
            q, k = torch.sigmoid(q) * 2, mix(k + 1)
            out = torch.empty_like(q)
            attend(q, k, out)
            h = torch.tanh(down(out) + h)
        return h


@pytest.fixture(scope="module")
def chain():
    with torch.no_grad():
        yield Chain().cuda()


def captured(chain, mode, partition, compiler):
    gc.collect()  # a pool that another test's plan is in would be counted too
    example = torch.randn(max(SIZES), WIDTH, device="cuda")
    config = GraphConfig(mode=mode, partition=partition, compile=compiler, sizes=SIZES, ownership="recycled")
    graphed = Graphed(chain, example=(example,), config=config)
    graphed.warm_up()
    assert not graphed.capture().failed
    assert (graphed.mode.partition, graphed.mode.compiler) == (partition, compiler)
    return graphed


def pool_bytes(graphed):
    return graphed.memory().owners["graph pool"]


def shares_memory(plans):
    """Whether what segments give to breaks overlaps between any two plans; bridges, which all plans share, apart."""
    taken = []
    for at, plan in enumerate(plans):
        bridges = {bridge.data_ptr() for step in plan.break_steps for bridge in step.bridges}
        given = {t.data_ptr(): t.nbytes for step in plan.break_steps for t in step.inputs}
        taken += [(start, start + size, at) for start, size in given.items() if start not in bridges]
    return any(a < d and c < b and one != other for a, b, one in taken for c, d, other in taken)


COMPILED = [("piecewise", "inductor", "none"), ("piecewise", "fx", "inductor"), ("full", "breakable", "inductor")]


@pytest.mark.parametrize(("mode", "partition", "compiler"), COMPILED)
@torch.no_grad()
def test_the_pool_is_that_of_uncompiled_graphs(chain, mode, partition, compiler):
    with captured(chain, mode, "breakable", "none") as plain:
        of_plain, arguments = pool_bytes(plain), plain.break_argument_bytes()
    with captured(chain, mode, partition, compiler) as compiled:
        # the allocator takes 20 MiB at a time; what one key alone would hold is some 300
        assert pool_bytes(compiled) <= 1.5 * of_plain + (40 << 20), (pool_bytes(compiled), of_plain)
        found = compiled.break_argument_bytes()
    assert (found.segment > 0) == (arguments.segment > 0) == (mode == "piecewise")
    assert found.outside == arguments.outside == 0


@pytest.mark.parametrize(("mode", "partition", "compiler"), COMPILED)
@torch.no_grad()
def test_keys_that_share_memory_answer_as_eager_in_turns(chain, mode, partition, compiler):
    with captured(chain, mode, partition, compiler) as graphed:
        if mode == "piecewise":
            assert shares_memory(list(graphed.plans.values())), "keys live in each other's memory"
        for seed, rows in enumerate((2048, 256, 1, 512, 1500, 255, 2048, 1024, 3)):
            x = torch.randn(rows, WIDTH, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
            torch.testing.assert_close(graphed(x), chain(x), rtol=1e-3, atol=1e-3)


def test_what_compiled_code_allocates_is_told_by_session(backend):
    """Also what the callable keeps from one capture to the next: no replay of the later plan rewrites it."""
    weight = torch.randn(WIDTH, WIDTH, device="cuda")
    x = torch.randn(256, WIDTH, device="cuda")
    block = torch.compile(lambda t: torch.tanh(t) * 2 + 1)
    block(x)  # compiles
    with backend.session():
        want = block(x) @ weight
    graphs = []
    with backend.phase():
        with backend.session():
            backend.begin()
            kept = block(x)
            graphs.append(backend.end())
            assert backend.has_made(kept) and backend.borrow(kept) is not kept
        with backend.session():
            backend.begin()
            made = block(x)
            got = made @ weight  # an op that is seen, of a buffer that is not
            again = block(kept)
            graphs.append(backend.end())
            eager = block(x)
            assert all(backend.has_made(tensor) for tensor in (made, made[3:], got, again))
            assert not any(backend.has_made(tensor) for tensor in (kept, eager, x, weight))
            assert backend.borrow(kept) is kept
            for tensor in (made, kept, eager):
                backend.note_external(tensor, "break mix")
            found = {external.address for external in backend.externals()}
    assert found == {weight.data_ptr(), kept.data_ptr(), eager.data_ptr()}
    for graph in graphs:
        graph.replay()
    torch.testing.assert_close(got, want)
    for graph in graphs:
        graph.close()


def test_a_segment_that_held_nothing_keeps_nothing(backend):
    """Its pool dies with it, so what it allocated must be held by whoever goes on using it."""
    with backend.phase(), backend.session():
        backend.begin()
        buffer = torch.empty(1 << 20, device="cuda")
        assert backend.has_made(buffer)
        backend.end().close()
        is_alone = backend._shared.pools[-1].num_graphs == 0
        assert backend.has_made(buffer) is not is_alone
        backend.begin()
        y = buffer * 2
        graph = backend.end()
        is_held = buffer.data_ptr() in {external.address for external in backend.externals()}
        assert is_held is is_alone
    graph.close()
    del y
