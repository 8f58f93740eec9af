"""Where a traced graph is cut: at breaks and nowhere else, in the graph's own order."""

import pytest
import torch

from ostinato.runtime import graph_break
from ostinato.runtime.breaks import handling_breaks
from ostinato.runtime.runners.piecewise.split import split_at_breaks


@graph_break
def mix(h):
    return torch.cumsum(h, 0)


@graph_break(mutates=("out",))
def fill(h, out):
    out.copy_(h * 10)


@graph_break
def nothing(h):
    return None


def layers(num):
    """As a model's: work, a break, work, ..."""

    def program(x):
        h = x * 2
        for _ in range(num):
            h = mix(h).relu() + h
        return h

    return program


def allocates(x):
    """The allocation between two breaks is no work."""
    h = mix(x + 1)
    out = torch.empty_like(h)
    fill(h, out)
    return out * 2


def works_around_an_allocation(x):
    """The allocation is amid work: it is no reason to cut there."""
    h = x + 1
    out = torch.empty_like(h)
    torch.mul(h, 2, out=out)
    return mix(out) * 2


def views(x):
    h = mix(x + 1)
    return mix(h.view(h.shape[0], -1, 1).view(-1, 2)) * 2


def shapes_of(program):
    return "".join("b" if piece.is_break else "g" for piece in program.pieces)


@pytest.mark.parametrize(
    ("program", "pieces", "num_breaks"),
    [
        (lambda x: x + 1, "g", 0),
        *((layers(num), "gb" * num + "g", num) for num in (1, 2, 5)),
        (lambda x: mix(x) + 1, "bg", 1),
        (lambda x: mix(x + 1), "gb", 1),
        (lambda x: mix(mix(mix(x + 1))) * 2, "gbg", 3),  # consecutive breaks share a piece
        (lambda x: (nothing(x + 1), nothing(x), x * 2)[2], "gbg", 2),
        (allocates, "gbg", 2),
        (works_around_an_allocation, "gbg", 1),
        (views, "gbg", 2),
        (lambda x: mix(x + 1).view(-1), "gbg", 1),  # what only views at the end stays a graph
    ],
)
def test_pieces(traced, program, pieces, num_breaks):
    split = split_at_breaks(traced(program, torch.ones(4, 2)).module)
    assert shapes_of(split) == pieces
    assert sum(len(piece.breaks) for piece in split.pieces) == num_breaks
    assert all(piece.is_break == bool(piece.breaks) for piece in split.pieces)


def test_allocations_go_to_the_break_that_follows(traced):
    split = split_at_breaks(traced(allocates, torch.ones(4, 2)).module)
    graph, breaks, last = split.pieces
    assert [point.name for point in breaks.breaks] == ["mix", "fill"]
    assert (graph.num_ops, last.num_ops) == (1, 1)
    assert breaks.num_ops >= 3, "both breaks and the allocation"


def test_the_order_is_the_graphs_own(traced):
    """A break that writes in place has no data edge to the read that must come before it."""

    def program(x):
        state = x * 1
        before = state + 0
        fill(before, state)
        after = state + 0
        return before, after

    module = traced(program, torch.ones(4, 2)).module
    split = split_at_breaks(module)
    assert shapes_of(split) == "gbg"
    order = [node.target for node in split.module.graph.nodes if node.op == "call_module"]
    assert order == [piece.name for piece in split.pieces]


@pytest.mark.parametrize("program", [layers(3), allocates, views, lambda x: (x, {"a": mix(x) + 1})[1]["a"]])
def test_the_pieces_compute_what_the_module_computes(traced, program):
    x = torch.randn(4, 2)
    found = traced(program, x, compiler=lambda module, example: split_at_breaks(module))
    assert torch.equal(found.run(x), program(x))
    other = torch.randn(7, 2)  # not a size of the trace
    assert torch.equal(found.run(other), program(other))


def test_the_module_is_left_as_it_was(traced):
    module = traced(layers(2), torch.ones(4, 2)).module
    before = str(module.graph)
    split_at_breaks(module)
    assert str(module.graph) == before


def test_breaks_run_by_the_handler_in_order(traced):
    """The ops of break pieces do not pass torch's dispatcher: a capture must be able to end before they run."""
    seen = []

    class Handler:
        def run_break(self, point, args, kwargs):
            seen.append(point.name)
            with handling_breaks(None):
                return point.fn(*args, **kwargs)

    def program(x):
        return allocates(layers(2)(x))

    found = traced(program, torch.ones(4, 2), compiler=lambda module, example: split_at_breaks(module))
    with handling_breaks(Handler()):
        found.run(torch.ones(4, 2))
    assert seen == ["mix", "mix", "mix", "fill"]


def test_a_replaced_piece_is_run_instead(traced):
    x = torch.ones(4, 2)
    kept = {}

    def compiler(module, example):
        kept["split"] = split_at_breaks(module)
        return kept["split"]

    found = traced(lambda x: mix(x + 1) * 2, x, compiler=compiler)
    piece = kept["split"].pieces[0]
    assert not piece.is_break
    kept["split"].replace(piece.name, lambda *flat: torch.full((4, 2), 7.0))
    assert found.run(x)[:, 0].tolist() == [14.0, 28.0, 42.0, 56.0]
