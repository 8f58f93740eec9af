"""The runner that traces: when it learns, when it traces, what it refuses, and that plans are made by the inner one."""

import pytest
import torch

from ostinato.errors import CaptureError, UnsupportedPartitionError, UntraceableBreakError, UntraceableError
from ostinato.runtime import GraphConfig, Graphed, RuntimeMode, Slot, graph_break
from ostinato.runtime.keys import Compiler, GraphKey, Partition
from ostinato.runtime.runners import BoundCall, BreakableRunner, FullRunner
from ostinato.runtime.runners.piecewise import CompiledRunner


def key(rows, mode=RuntimeMode.PIECEWISE):
    return GraphKey(runtime_mode=mode, num_tokens=rows)


@graph_break
def mix(h):
    return torch.cumsum(h, -1)


def program(x):
    return mix(x * 2) + x


@pytest.fixture
def runner(backend):
    return CompiledRunner(backend, BreakableRunner(backend), partition=Partition.FX)


def bound(fn, rows):
    return BoundCall(fn, (torch.ones(rows, 2),), {})


def test_warm_up_runs_the_callable_and_then_its_trace(runner, backend):
    runs = []

    def fn(x):
        if not torch.compiler.is_compiling():
            runs.append(x.shape[0])
        return program(x)

    calls = {rows: bound(fn, rows) for rows in (8, 4)}
    for _ in range(3):
        for rows, call in calls.items():
            assert torch.equal(runner.warm_up(key(rows), call), program(call.args[0]))
    assert runs == [8, 4], "only the first round runs the callable itself"
    with backend.phase():
        plans = {rows: runner.capture(key(rows), call) for rows, call in calls.items()}
    assert runs == [8, 4]
    for rows, plan in plans.items():
        calls[rows].args[0].fill_(3.0)
        assert torch.equal(plan.replay(rows), program(calls[rows].args[0]))
        assert (plan.num_segments, len(plan.breaks)) == (2, 1)
        plan.close()


def test_capture_before_the_second_warm_up_is_an_error(runner, backend):
    call = bound(program, 4)
    runner.warm_up(key(4), call)
    with backend.phase(), pytest.raises(CaptureError, match="captured before it was traced") as caught:
        runner.capture(key(4), call)
    assert "warm up twice" in caught.value.fix


def test_the_facade_warms_up_twice_whatever_is_asked(ready):
    graphed = ready(program, torch.ones(4, 2), mode="piecewise", partition="fx", sizes=(4,), warm_up_runs=1)
    assert torch.equal(graphed(torch.ones(4, 2)), program(torch.ones(4, 2)))


@pytest.mark.parametrize(
    ("partition", "compiler"),
    [(Partition.INDUCTOR, Compiler.NONE), (Partition.FX, Compiler.INDUCTOR), (Partition.INDUCTOR, Compiler.INDUCTOR)],
)
def test_inductor_cannot_be_simulated(backend, partition, compiler):
    with pytest.raises(UnsupportedPartitionError, match="bypass the dispatcher") as caught:
        CompiledRunner(backend, FullRunner(backend), partition=partition, compiler=compiler)
    assert "partition='fx'" in caught.value.fix


def test_large_keys_are_recorded_uncompiled(backend):
    runner = CompiledRunner(backend, BreakableRunner(backend), partition=Partition.FX, max_tokens=4)
    seen = []

    def fn(x):
        seen.append((x.shape[0], torch.compiler.is_compiling()))
        return program(x)

    large, small = bound(fn, 5), bound(program, 4)
    for _ in range(2):
        runner.warm_up(key(5), large)
        runner.warm_up(key(4), small)
    assert runner.pieces, "the small one was traced"
    with backend.phase():
        plans = [runner.capture(key(5), large), runner.capture(key(4), small)]
    assert seen == [(5, False)] * 3
    for plan in plans:
        plan.close()


def test_a_full_graph_of_a_trace_is_one_segment(backend):
    runner = CompiledRunner(backend, FullRunner(backend), partition=Partition.FX)
    assert runner.runtime_mode is RuntimeMode.FULL
    call = bound(program, 4)
    for _ in range(2):
        runner.warm_up(key(4, RuntimeMode.FULL), call)
    with backend.phase():
        plan = runner.capture(key(4, RuntimeMode.FULL), call)
    assert (plan.num_segments, plan.breaks) == (1, [])
    call.args[0].fill_(5.0)
    assert torch.equal(plan.replay(4), program(call.args[0]))
    plan.close()


# --- through the facade -----------------------------------------------------------------------------

FX = {"mode": "piecewise", "partition": "fx"}


def test_every_key_is_the_one_trace_but_size_one(ready):
    graphed = ready(program, torch.ones(8, 2), sizes=(1, 2, 4, 8), **FX)
    for rows in (1, 2, 3, 8):
        x = torch.randn(rows, 2)
        assert torch.equal(graphed(x), program(x))
    assert len(graphed.plans) == 4
    runner = graphed._runs.runners[RuntimeMode.PIECEWISE]
    assert sorted(runner._programs) == [(("piecewise", None), (False,)), (("piecewise", None), (True,))]


def test_keys_of_another_kind_are_traced_apart(backend):
    """A callable may do something else for decodes than for mixed batches, and knows which from its owner."""
    runner = CompiledRunner(backend, FullRunner(backend), partition=Partition.FX)
    told = {"is_decode": False}

    def fn(x):
        return x * 2 if told["is_decode"] else x + 5

    calls = {}
    for rows, query_len in ((8, None), (4, None), (8, 1), (4, 1), (8, 2)):
        calls[GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=rows, uniform_query_len=query_len)] = bound(fn, rows)

    def is_decode(key):
        told["is_decode"] = key.uniform_query_len == 1
        return key

    for _ in range(2):
        for key, call in calls.items():
            runner.warm_up(is_decode(key), call)
    with backend.phase():
        plans = {key: runner.capture(is_decode(key), call) for key, call in calls.items()}
    assert len(runner._programs) == 3, "one a kind, for all its sizes"
    for key, plan in plans.items():
        assert plan.replay(key.num_tokens).eq(2 if key.uniform_query_len == 1 else 6).all()
        plan.close()


def test_sizes_that_count_other_things_are_symbols_too():
    """Requests, and one more than requests, are not the number of rows."""
    slots = {
        "x": Slot(shape=(None, 2), dtype=torch.float32),
        "lens": Slot(shape=(None,), dtype=torch.float32, axis="num_reqs"),
        "start": Slot(shape=(None,), dtype=torch.float32, axis="num_reqs", extra=1),
    }

    def fn(x, lens, start):
        return mix(x) + lens.sum() + start.sum(), lens * 2

    config = GraphConfig(sizes=(3, 6, 9), max_num_reqs=4, **FX)
    with Graphed(fn, slots=slots, config=config) as graphed:
        graphed.warm_up()
        assert not graphed.capture().failed
        for rows, reqs in ((9, 4), (6, 3), (3, 2), (2, 2)):
            given = (torch.randn(rows, 2), torch.ones(reqs), torch.ones(reqs + 1))
            got, lens = graphed(*given)
            assert torch.allclose(got, fn(*given)[0])
            assert lens[:reqs].eq(2).all()


def test_the_callables_state_is_undone_before_each_traced_run(ready):
    """PITFALLS: warm-up flips a lazy flag, and what is recorded skips what the flag guards."""

    class Lazy:
        def __init__(self):
            self.is_ready = False
            self.table = torch.zeros(2)

        def reset(self):
            self.is_ready = False

        def __call__(self, x):
            if not self.is_ready:
                self.table.copy_(x.sum(0))
                self.is_ready = True
            return x * self.table

    lazy = Lazy()
    for sizes in ((4,), (1, 4, 8)):
        graphed = ready(lazy, torch.ones(8, 2), sizes=sizes, hooks={"after_warm_up": lazy.reset}, **FX)
        for value in (1.0, 2.0):
            assert graphed(torch.full((4, 2), value)).eq(4 * value * value).all(), "the table follows each step"


def test_a_size_in_the_result_is_each_keys_own(ready):
    graphed = ready(lambda x: (x * 2, x.shape[0]), torch.ones(8, 2), sizes=(4, 8), **FX)
    assert graphed(torch.ones(3, 2))[1] == 4
    assert graphed(torch.ones(7, 2))[1] == 8


def test_a_program_that_returns_something_else_is_refused(runner):
    calls = [bound(lambda x: (x * 2, 7), rows) for rows in (8, 4)]
    for call in calls:
        runner.warm_up(key(len(call.args[0])), call)
    runner._outlines[key(8)] = ((((8, 2), torch.float32)), (int, 8))
    with pytest.raises(UntraceableError, match="something else than the callable for PIECEWISE tokens=8") as caught:
        runner.warm_up(key(8), calls[0])
    assert "(<class 'int'>, 7)" in str(caught.value)


@pytest.mark.parametrize(
    ("brk", "why"),
    [
        (lambda h: torch.cat([h, h]), "follows no argument's size"),
        (lambda h: h[:, :1], "a view of its argument 'h'"),
    ],
)
def test_a_break_that_cannot_be_an_op_can_still_be_a_break(ready, brk, why):
    marked = graph_break(brk)

    def fn(x):
        return marked(x + 1)[: len(x)] * 2

    with pytest.raises(UntraceableBreakError, match=why):
        ready(fn, torch.ones(8, 2), sizes=(4, 8), **FX)
    graphed = ready(fn, torch.ones(8, 2), sizes=(4, 8), mode="piecewise")
    assert torch.equal(graphed(torch.ones(8, 2)), fn(torch.ones(8, 2)))


def test_breaks_are_plain_functions_again_for_other_compilers(ready):
    ready(program, torch.ones(4, 2), sizes=(4,), **FX)
    ops = []

    def look(module, example):
        ops.extend(str(node.target) for node in module.graph.nodes)
        return module

    torch.compile(lambda x: mix(x) + 1, backend=look)(torch.ones(4, 2))
    assert any("cumsum" in op for op in ops)
    assert not any("ostinato" in op for op in ops)


def test_two_callables_share_a_break(ready):
    first = ready(lambda x: mix(x) + 1, torch.ones(8, 2), sizes=(4, 8), **FX)
    second = ready(lambda x: mix(x.double()) * 2, torch.ones(8, 3), sizes=(4, 8), **FX)
    x, y = torch.randn(3, 2), torch.randn(5, 3)
    assert torch.equal(first(x), torch.cumsum(x, -1) + 1)
    assert torch.equal(second(y), torch.cumsum(y.double(), -1) * 2)
