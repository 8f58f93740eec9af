"""One trace for many calls: what is bound anew each time, what is given back, and what cannot be traced."""

import functools
import gc
import inspect
import weakref

import pytest
import torch

from ostinato.errors import UntraceableError
from ostinato.runtime import graph_break
from ostinato.runtime.runners.piecewise.program import outline
from ostinato.runtime.runners.piecewise.trace import trace


def rows(n, width=2):
    return torch.arange(float(n * width)).view(n, width) + 1


def equal(got, want):
    return outline(got) == outline(want) and all(
        torch.equal(a, b)
        for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True)
        if isinstance(a, torch.Tensor)
    )


# --- what a program is bound to ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2 + 1,
        lambda x: x * x.shape[0],
        lambda x: torch.zeros(x.shape[0], 3) + x[:, :1],
        lambda x: x.sum() / x.numel(),
        lambda x: x.view(-1),
    ],
    ids=["tensors", "a size as a factor", "a size as a shape", "a size as a divisor", "a view"],
)
def test_one_trace_serves_all_sizes(traced, fn):
    found = traced(fn, rows(4))
    for n in (2, 4, 5, 9):
        assert equal(found.run(rows(n)), fn(rows(n)))


def test_arguments_are_found_by_name_and_nesting(traced):
    def fn(x, extra, *, scale, bias=None):
        return x * scale + extra["a"][0] - bias

    def call(n):
        return (rows(n), {"a": [rows(n) * 3]}), {"scale": 2.0, "bias": torch.tensor([1.0, 5.0])}

    args, kwargs = call(4)
    found = traced(fn, *args, is_dynamic=False, **kwargs)
    args, kwargs = call(4)
    args[0].mul_(7)
    kwargs["bias"] = torch.tensor([100.0, 200.0])
    assert equal(found.run(*args, **kwargs), fn(*args, **kwargs))


def test_parameters_are_read_where_they_are(traced):
    module = torch.nn.Linear(2, 3)
    found = traced(module, rows(4))
    with torch.no_grad():
        module.weight.fill_(0.5)
        module.bias.fill_(2.0)
    assert equal(found.run(rows(5)), module(rows(5)).detach())


def test_tensors_that_are_no_arguments_are_looked_up_at_each_binding(traced):
    """As metadata that is rebuilt before each key: the first one's must not be kept."""
    step = {"table": torch.ones(2)}
    found = traced(lambda x: x * step["table"], rows(4))
    step["table"] = torch.tensor([10.0, 20.0])
    assert found.run(torch.ones(5, 2))[0].tolist() == [10.0, 20.0]


def test_arguments_that_are_no_tensors_are_constants(traced):
    found = traced(lambda x, n, name: x * n if name == "times" else x + n, rows(4), 3, "times")
    assert equal(found.run(rows(5), 3, "times"), rows(5) * 3)
    with pytest.raises(UntraceableError, match="changes from run to run") as caught:
        found.run(rows(5), 4, "times")
    assert "== 3" in caught.value.context["guard"]


def test_what_changes_between_runs_is_refused_with_its_guard(traced):
    state = {"offset": 1}
    found = traced(lambda x: x + state["offset"], rows(4))
    assert equal(found.run(rows(4)), rows(4) + 1)
    state["offset"] = 2
    with pytest.raises(UntraceableError, match="a replay would go on with the traced value") as caught:
        found.run(rows(4))
    assert "offset" in caught.value.context["guard"]
    assert "after_warm_up" in caught.value.fix
    state["offset"] = 1
    assert equal(found.run(rows(4)), rows(4) + 1)


@torch.no_grad()
def test_binding_runs_nothing(traced):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x):
            self.total.add_(x.sum())
            return x * 2

    module = Counting()
    found = traced(module, torch.ones(4, 2))
    before = module.total.item()
    bound = found.program.bind((torch.ones(4, 2),), {})
    assert module.total.item() == before
    bound()
    assert module.total.item() == before + 8


def test_size_one_is_bound_to_no_symbol(traced):
    found = traced(lambda x: x * 2, rows(4))
    with pytest.raises(UntraceableError, match="changes from run to run"):
        found.run(rows(1))
    single = traced(lambda x: x * 2, rows(1), is_dynamic=False)
    assert equal(single.run(rows(1)), rows(1) * 2)


# --- what it gives back ---------------------------------------------------------------------------


def test_results_keep_their_nesting(traced):
    def fn(x, y):
        h = x * 2
        return {"h": h, "list": [h + y, None], "input": y, "again": h, "n": x.shape[0], "name": "n", "flag": True}

    found = traced(fn, rows(4), rows(4) * 10)
    for n in (4, 6):
        x, y = rows(n), rows(n) * 10
        got = found.run(x, y)
        assert equal(got, fn(x, y))
        assert got["input"] is y
        assert got["again"] is got["h"]


def test_a_named_tuple_stays_one(traced):
    def fn(x):
        return torch.max(x, 1)

    got = traced(lambda x: tuple(fn(x)), rows(4)).run(rows(5))
    assert equal(got, tuple(fn(rows(5))))


class Holder:
    def __init__(self, h):
        self.h = h


TABLE = torch.ones(2)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: Holder(x * 2), "returns a Holder, which a trace would freeze"),
        (lambda x: (x * 2, TABLE), "neither computed in the graph nor an argument"),
        (lambda x: 3, "no tensor work to trace"),
    ],
)
def test_results_that_a_trace_would_freeze(traced, fn, why):
    with pytest.raises(UntraceableError, match=why):
        traced(fn, rows(4))


# --- what cannot be traced --------------------------------------------------------------------------


def lines_with(fn, text):
    """``file:line`` of the one line of ``fn`` that has ``text``."""
    source, start = inspect.getsourcelines(fn)
    (found,) = [start + i for i, line in enumerate(source) if text in line]
    return f"{__file__}:{found}"


def prints(x):
    h = x + 1
    print("hello")  # here
    return h


def prints_below(x):
    return prints(x) + 1


def reads_an_item(x):
    h = x + 1
    return h * h.max().item()  # here


def reads_an_item_below(x):
    return inner(x) + 1


def inner(x):
    return x * x.sum().item()  # here


def masks(x):
    h = x + 1
    return h[h > 2] * 2  # here


def indexes(x):
    return torch.nonzero(x)  # here


def lists(x):
    h = x * 2
    return h + torch.tensor(h.tolist())  # here


@torch.library.custom_op("ostinato_tests::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def unknown_op(x):
    h = x + 1
    return no_fake(h)  # here


@pytest.mark.parametrize(
    ("fn", "blames", "words"),
    [
        (prints, prints, "print"),
        (prints_below, prints, "print"),
        (reads_an_item, reads_an_item, r"the value of item\(\) depends on the data"),
        (reads_an_item_below, inner, r"item\(\)"),
        (masks, masks, "the shape of getitem"),
        (indexes, indexes, r"the shape of nonzero\(\) depends on the data"),
        (lists, lists, "tolist"),
        (unknown_op, unknown_op, "no fake impl registered"),
    ],
)
def test_the_users_line_is_named(traced, capsys, fn, blames, words):
    with pytest.raises(UntraceableError, match=words) as caught:
        traced(fn, rows(4))
    assert caught.value.context["at"] == lines_with(blames, "# here")
    assert "partition='breakable'" in caught.value.fix
    assert "@graph_break" in caught.value.fix


def test_the_same_behind_a_break_mark_is_traced(traced):
    fn = functools.partial(lambda brk, x: brk(x + 1) * 2, graph_break(reads_an_item))
    assert equal(traced(lambda x: fn(x), rows(4)).run(rows(6)), fn(rows(6)))


def test_a_size_that_the_code_takes_apart_is_no_symbol(traced):
    def fn(x):
        return x + 1 if x.shape[0] == 4 else x * 100

    with pytest.raises(UntraceableError, match="cannot trace"):
        traced(fn, rows(4))


# --- Dynamo is the process's ------------------------------------------------------------------------


def test_what_others_compiled_stays_compiled(traced):
    num = [0]

    def count(module, example):
        num[0] += 1
        return module

    mine = torch.compile(lambda x: x + 1, backend=count)
    mine(rows(3))
    traced(lambda x: x * 2, rows(4))
    mine(rows(3))
    assert num == [1]


def test_settings_are_the_users_again(traced):
    from torch._dynamo import config

    before = (config.recompile_limit, config.automatic_dynamic_shapes)
    traced(lambda x: x * 2, rows(4))
    assert (config.recompile_limit, config.automatic_dynamic_shapes) == before


def test_one_code_may_be_traced_any_number_of_times(traced):
    def make(n):
        return lambda x: x * n

    for n in range(12):  # Dynamo's own limit is 8
        assert equal(traced(make(n), rows(4)).run(rows(5)), rows(5) * n)


def test_only_what_differs_becomes_a_symbol_whatever_was_traced_before(traced):
    def fn(x):
        return x * 2

    for width in (2, 3, 5):
        (x,) = [n for n in traced(fn, rows(4, width)).module.graph.nodes if n.target == "L_x_"]
        first, second = x.meta["example_value"].shape
        assert isinstance(first, torch.SymInt)
        assert type(second) is int


@torch.no_grad()
def test_dynamos_cache_does_not_keep_a_program():
    def fn(x):
        return x * 2

    program = trace(fn, (rows(4),), {}, lambda module, example: module, symbols=[(0, 0)])
    watched = weakref.ref(program)
    del program
    gc.collect()
    assert watched() is None


def test_dynamo_off_is_an_error(traced):
    found = traced(lambda x: x * 2, rows(4))
    with torch.compiler.set_stance("force_eager"), pytest.raises(UntraceableError, match="Dynamo was switched off"):
        found.run(rows(4))
