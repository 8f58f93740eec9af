"""A break as an op: what the tracer sees, what a run does, and what is refused."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ostinato.errors import UntraceableBreakError
from ostinato.runtime import graph_break
from ostinato.runtime.breaks import handling_breaks
from ostinato.runtime.runners.piecewise.lowering import NAMESPACE, BreakLowering, find_lowering


def lowering_of(fn, *calls, **marks):
    """A lowering that has seen ``calls``, each a tuple of arguments."""
    marked = graph_break(**marks)(fn) if marks else graph_break(fn)
    lowering = BreakLowering(marked.__ostinato_break__)
    for args in calls:
        lowering.observe(args, {}, fn(*args))
    return lowering


def rows(n):
    return torch.ones(n, 3)


def schema(lowering):
    lowering.stand_in()
    return str(lowering.op._schema).partition("(")[2]


def test_schema_of_all_kinds_of_arguments():
    def fn(h, n, scale, flag, name, w):
        return h * 2

    lowering = lowering_of(fn, (rows(4), 3, 0.5, True, "x", None), (rows(5), 3, 0.5, True, "x", None))
    assert schema(lowering) == "Tensor h, SymInt n, float scale, bool flag, str name, Tensor? w) -> Tensor"


@pytest.mark.parametrize(
    ("fn", "returns"),
    [
        (lambda h: None, "()"),
        (lambda h: h, "()"),
        (lambda h: 3, "()"),
        (lambda h: h * 2, "Tensor"),
        (lambda h: (h * 2, h, h.sum(0)), "(Tensor, Tensor)"),
    ],
)
def test_only_new_tensors_are_results(fn, returns):
    assert schema(lowering_of(fn, (rows(4),), (rows(5),))) == f"Tensor h) -> {returns}"


def test_what_is_written_is_told():
    def fn(h, out, state=None):
        out.copy_(h)

    lowering = lowering_of(fn, (rows(4), rows(4), rows(1)), (rows(5), rows(5), None), mutates=("out", "state"))
    assert schema(lowering) == "Tensor h, Tensor(a0!) out, Tensor(a1!)? state) -> ()"
    assert lowering.op._schema.is_mutable


def test_compilers_keep_it_and_graphs_leave_it_out():
    lowering = lowering_of(lambda h: None, (rows(4),), name="layers.0.attn")
    lowering.stand_in()
    assert lowering.op._schema.name.startswith(f"{NAMESPACE}::layers_0_attn_")
    assert torch.Tag.cudagraph_unsafe in lowering.op.tags
    graph = torch.fx.Graph()
    node = graph.call_function(lowering.op, (graph.placeholder("h"),))
    assert node.is_impure()


def test_ops_and_their_lowerings_find_each_other():
    first, second = (lowering_of(lambda h: None, (rows(4),)) for _ in range(2))
    first.stand_in(), second.stand_in()
    assert find_lowering(first.op) is first
    assert find_lowering(second.op.overloadpacket) is second
    assert find_lowering(torch.ops.aten.add.Tensor) is find_lowering("view") is find_lowering(len) is None


def test_the_stand_in_is_the_same_each_time():
    lowering = lowering_of(lambda h: h * 2, (rows(4),))
    assert lowering.stand_in() is lowering.stand_in()


def test_the_fake_follows_sizes_and_dtypes():
    def fn(h, n, w=None):
        return h * n, torch.zeros(7, dtype=torch.int8), h

    lowering = lowering_of(fn, (rows(4), 2), (rows(5).double(), 2))
    stand_in = lowering.stand_in()
    with FakeTensorMode() as mode:
        h = mode.from_tensor(torch.ones(9, 3, dtype=torch.float64))
        new, constant, same = stand_in(h, n=2)
    assert (new.shape, new.dtype) == ((9, 3), torch.float64)
    assert (constant.shape, constant.dtype) == ((7,), torch.int8)
    assert same is h


def test_the_fake_of_a_break_without_tensors():
    lowering = lowering_of(lambda: torch.arange(3), ())
    stand_in = lowering.stand_in()
    with FakeTensorMode():
        made = stand_in()
    assert (made.shape, made.dtype) == ((3,), torch.int64)
    assert stand_in().tolist() == [0, 1, 2]


def test_the_stand_in_gives_what_the_function_gives():
    def fn(h, *, scale=2.0, name="x"):
        return {"new": h * scale, "same": h, "plain": [name, 1], "none": None}

    lowering = lowering_of(fn, (rows(4),), (rows(5),))
    h = torch.arange(6.0).view(2, 3)
    got = lowering.stand_in()(h, scale=3.0)
    assert got["same"] is h
    assert torch.equal(got["new"], h * 3)
    assert (got["plain"], got["none"]) == (["x", 1], None)


def test_a_run_goes_to_the_threads_handler():
    lowering = lowering_of(lambda h: h * 2, (rows(4),))
    stand_in = lowering.stand_in()

    class Handler:
        def run_break(self, point, args, kwargs):
            assert point is lowering.point and not kwargs
            return args[0] * 100

    assert stand_in(rows(4)).eq(2).all()
    with handling_breaks(Handler()):
        assert stand_in(rows(4)).eq(100).all()


def test_what_a_run_gives_is_contiguous_as_the_fake_says():
    lowering = lowering_of(lambda h: h.repeat(2, 1).t(), (rows(4),))
    got = lowering.stand_in()(torch.arange(12.0).view(4, 3))
    assert got.is_contiguous()
    assert got.shape == (3, 8)


@pytest.mark.parametrize(
    "later",
    [lambda h: h, lambda h: None, lambda h: (h * 2,), lambda h: 3],
    ids=["its argument", "nothing", "a tuple", "a number"],
)
def test_another_kind_of_result_than_in_warm_up(later):
    now = {"fn": lambda h: h * 2}
    lowering = lowering_of(lambda h: now["fn"](h), (rows(4),))
    stand_in = lowering.stand_in()
    now["fn"] = later
    with pytest.raises(UntraceableBreakError, match="differs in more than tensors"):
        stand_in(rows(4))


def test_a_number_that_changes_is_not_frozen():
    counter = iter(range(100))
    lowering = lowering_of(lambda h: (h * 2, next(counter)), (rows(4),))
    with pytest.raises(UntraceableBreakError, match="differs in more than tensors"):
        lowering.stand_in()(rows(4))
