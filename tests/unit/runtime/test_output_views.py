"""Outputs of a `Graphed` as views: which of them are checked, what makes one stale, and that they may be fed back."""

from typing import NamedTuple

import pytest
import torch

from ostinato.errors import StaleOutputError
from ostinato.runtime import GraphConfig, Graphed, ReplayView, Slot, graph_break

X = torch.arange(8.0).view(4, 2)


def on_views(fn, *example, sizes=(2, 4), **config):
    graphed = Graphed(fn, example=example, config=GraphConfig(sizes=sizes, outputs="view", **config))
    graphed.warm_up()
    assert not graphed.capture().failed
    return graphed


@graph_break
def between(h):
    return h * 3


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def program(x):
    h = x + 1
    broken = between(h)
    return {"pair": Pair(h * 2, broken), "list": [broken + h, 7], "mean": h.sum() * 0 + 5}


@pytest.mark.parametrize(
    "config", [{"mode": "full"}, {"mode": "piecewise"}, {"mode": "piecewise", "partition": "fx"}], ids=str
)
def test_every_output_of_every_partition_is_right_and_then_stale(config):
    with on_views(program, X, **config) as graphed:
        for rows in (1, 2, 3, 4):
            x = X[:rows] + rows
            out = graphed(x)
            want = program(x)
            leaves = [*out["pair"], out["list"][0], out["mean"]]
            wanted = [*want["pair"], want["list"][0], want["mean"]]
            assert isinstance(out["pair"], Pair) and out["list"][1] == 7
            assert all(type(leaf) is ReplayView for leaf in leaves)
            assert all(torch.equal(leaf.clone(), value) for leaf, value in zip(leaves, wanted, strict=True))
            graphed(X[:1])  # whichever key comes next: all share memory
            for leaf in leaves:
                with pytest.raises(StaleOutputError, match=str(graphed.explain(x).key)):
                    leaf.sum()


def test_what_else_makes_a_view_stale():
    graphed = on_views(lambda x: x * 2, X)
    decision = graphed.explain(X[:1])
    for act in (
        lambda: graphed.run(decision),
        graphed.qualify,
        lambda: graphed.bisect(graphed.keys[0]),
        graphed.recapture,
    ):
        view = graphed(X)
        assert not view.is_stale
        act()
        assert view.is_stale
    graphed.close()


def test_what_leaves_a_view_fresh():
    with on_views(lambda x: x * 2, X) as graphed:
        view = graphed(X)
        graphed(torch.ones(9, 2))  # eager: larger than any bucket
        graphed.explain(X)
        graphed.check_guards()
        graphed.memory()
        with on_views(lambda x: x * 2, X) as other:  # simulated graphs of another callable have a pool of their own
            other(X)
        assert torch.equal(view.clone(), X * 2)


def test_nobody_overwrites_what_was_lent_once_the_graphs_are_gone():
    with on_views(lambda x: x * 2, X) as graphed:
        released = graphed(X)
        graphed.release()
        assert torch.equal(released.clone(), X * 2)
        graphed.recapture()
        closed = graphed(X + 1)
    assert torch.equal(closed.clone(), (X + 1) * 2)


def test_a_replay_that_raises_makes_them_stale_too():
    @graph_break
    def fails(h):
        if is_failing:
            raise ValueError("planted")

    def fn(x):
        h = x * 2
        fails(h)
        return h

    is_failing = False
    with on_views(fn, X, mode="piecewise") as graphed:
        view = graphed(X)
        is_failing = True
        with pytest.raises(ValueError, match="planted"):
            graphed(X)
        assert view.is_stale


def test_eager_steps_and_run_give_plain_tensors():
    with on_views(lambda x: x * 2, X) as graphed:
        assert type(graphed(torch.ones(9, 2))) is torch.Tensor
        assert type(graphed.run(graphed.explain(X))) is torch.Tensor
        assert type(graphed(X)) is ReplayView


def test_copies_are_plain():
    with Graphed(lambda x: x * 2, example=(X,), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up().capture()
        assert type(graphed(X)) is torch.Tensor


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_the_last_output_may_be_fed_back(partition):
    def step(x):
        return between(x + 1) - x

    with on_views(step, X, mode="piecewise", partition=partition) as graphed:
        got, want = X, X
        for _ in range(5):
            got, want = graphed(got), step(want)
        assert torch.equal(got.clone(), want)
        stale = graphed(X)
        graphed(X)
        with pytest.raises(StaleOutputError):
            graphed(stale)
        with pytest.raises(StaleOutputError):
            graphed(stale[:1])


def test_an_output_that_is_an_input_is_a_copy():
    """Lent, the next inputs would overwrite it before it is read; and here each would be copied onto the other."""
    with on_views(lambda x, y: (y, x, x + y), X, X + 100) as graphed:
        one, two = X, X + 100
        for _ in range(3):
            first, second, total = graphed(one, two)
            assert type(first) is type(second) is torch.Tensor and type(total) is ReplayView
            assert torch.equal(first, two) and torch.equal(second, one)
            one, two = first, second
        held = first.clone()
        graphed(X[:1], X[:1])
        assert torch.equal(first, held), "and they last"


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.last = None

    def forward(self, x):
        self.total.add_(1)
        self.last = x * self.weight
        return self.total, self.weight, self.last


def test_what_the_callable_keeps_is_lent_as_it_is():
    """As by an eager call; but not what it merely stashes: that lies in memory of the graph."""
    module = Counting()
    with on_views(module, X, sizes=(4,)) as graphed:
        total, weight, last = graphed(X)
        count = total.item()
        graphed(X)
        assert type(total) is torch.Tensor and total.data_ptr() == module.total.data_ptr() and total == count + 1
        assert weight.data_ptr() == module.weight.data_ptr() and weight.eq(1).all()
        with pytest.raises(StaleOutputError):
            last.sum()


def test_a_replay_of_a_graph_whose_memory_was_reused_is_counted():
    """The danger itself: an early key's intermediates may lie where a later key has its outputs."""

    def fn(x):
        h = x * 2
        for _ in range(6):
            h = torch.tanh(h + 1)  # intermediates that are free again at the end
        return h

    with on_views(fn, torch.ones(64, 4), sizes=(4, 64)) as graphed:
        large, small = graphed.keys
        held = graphed(torch.ones(small.num_tokens, 4))
        before = held.clone()
        graphed(torch.full((large.num_tokens, 4), -3.0))
        assert not torch.equal(held.unchecked(), before), "the large key has overwritten it"
        with pytest.raises(StaleOutputError):
            held.clone()


def test_with_slots():
    slots = {"x": Slot(shape=(None, 2), dtype=torch.float32)}
    with Graphed(lambda x: x + 1, slots=slots, config=GraphConfig(sizes=(4,), outputs="view")) as graphed:
        graphed.warm_up().capture()
        view = graphed(X)
        assert torch.equal(graphed(view).clone(), X + 2) and view.is_stale
