"""Where segments end and begin, and what is left after an error."""

import contextlib

import pytest
import torch

from ostinato.errors import CaptureError, UnbrokenOpError
from ostinato.runtime.breaks import break_graph, graph_break
from ostinato.runtime.runners import BreakableRunner


@pytest.fixture
def runner(backend):
    return BreakableRunner(backend)


@graph_break
def double(h):
    return h * 2


@graph_break
def nothing(h):
    return h


@pytest.mark.parametrize(
    ("program", "segments", "breaks"),
    [
        (lambda t: t + 1, 1, 0),
        (lambda t: double(t + 1) + 1, 2, 1),
        (lambda t: double(t), 0, 1),
        (lambda t: double(t) + 1, 1, 1),
        (lambda t: double(t + 1), 1, 1),
        (lambda t: double(double(nothing(t + 1))) + 1, 2, 3),
        (lambda t: double(double(t + 1).view(2, 2)) + 1, 2, 2),  # a view is no work
        (lambda t: double(double(t + 1) + 1) + 1, 3, 2),
        (lambda t: (break_graph(), t + 1, break_graph(), break_graph())[1] + 1, 2, 3),
    ],
)
def test_segments_and_breaks(runner, make_plan, program, segments, breaks):
    x = torch.ones(4)
    plan = make_plan(runner, program, x, is_warm=False)
    assert (plan.num_segments, len(plan.breaks)) == (segments, breaks)
    assert len(plan.entries) == segments + breaks, "no empty graph is kept"
    x.copy_(torch.randn(4))
    assert torch.equal(plan.replay(4), program(x))


def test_each_break_of_a_plan_has_its_own_bridge(runner, make_plan):
    x = torch.ones(4)
    plan = make_plan(runner, lambda t: torch.stack([double(t + 1), double(t + 2), double(t + 3)]) + 0, x)
    x.fill_(10.0)
    assert plan.replay(4)[:, 0].tolist() == [22.0, 24.0, 26.0]


def test_a_break_inside_a_break_is_part_of_it(runner, make_plan):
    @graph_break
    def outer(h):
        return double(h) + double(h)

    x = torch.ones(3)
    plan = make_plan(runner, lambda t: outer(t + 1) + 1, x)
    assert len(plan.breaks) == 1
    x.fill_(5.0)
    assert plan.replay(3).tolist() == [25.0] * 3


def test_a_break_sees_real_data_at_capture(runner, make_plan):
    seen = []

    @graph_break
    def look(h):
        seen.append(h.tolist())  # a host sync: legal here
        return h

    make_plan(runner, lambda t: look(t + 1) * 2, torch.ones(2), is_warm=False)
    assert seen == [[2.0, 2.0]]


def test_an_exception_in_a_break_surfaces_as_itself(runner, backend, make_plan):
    """PITFALLS: the clean-up's own assertion hides it elsewhere."""

    @graph_break
    def fails(h):
        raise KeyError("inside the break")

    with pytest.raises(KeyError, match="inside the break"):
        make_plan(runner, lambda t: fails(t + 1) + 1, torch.ones(2), is_warm=False)
    assert not backend.is_capturing()
    assert backend.memory().num_graphs == 0
    assert make_plan(runner, lambda t: double(t + 1), torch.ones(2)).replay(2).tolist() == [4.0, 4.0]


def test_a_swallowed_exception_is_a_hole_in_the_plan(runner, backend, make_plan):
    first = ZeroDivisionError("inside the break")

    @graph_break
    def fails(h):
        raise first

    def program(t):
        with contextlib.suppress(ZeroDivisionError):
            fails(t + 1)
        return double(t) + 1  # another break after the hole

    with pytest.raises(CaptureError, match="swallowed by the callable") as caught:
        make_plan(runner, program, torch.ones(2), is_warm=False)
    assert caught.value.__cause__ is first
    assert backend.memory().num_graphs == 0
    assert make_plan(runner, lambda t: t + 1, torch.ones(2)).replay(2).tolist() == [2.0, 2.0]


def test_an_exception_after_some_segments_closes_them(runner, backend, make_plan):
    def program(t):
        double(t + 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_plan(runner, program, torch.ones(2), is_warm=False)
    assert backend.memory().num_graphs == 0


def attention(t):
    q = t.view(1, 1, 2, 2)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q).reshape(4)


def test_attention_in_a_segment_is_refused(runner, backend, make_plan):
    with pytest.raises(UnbrokenOpError, match="scaled_dot_product_attention"):
        make_plan(runner, attention, torch.ones(4), is_warm=False)
    allowed = BreakableRunner(backend, forbid=frozenset())
    assert make_plan(allowed, attention, torch.ones(4), is_warm=False).replay(4).tolist() == [1.0] * 4
    assert make_plan(runner, lambda t: graph_break(attention)(t), torch.ones(4), is_warm=False).replay(4).numel() == 4


def test_smaller_keys_share_the_bridges_of_larger_ones(runner, make_plan):
    held_input = torch.ones(8)
    large = make_plan(runner, lambda t: double(t + 1) + 1, held_input)
    held = runner.bridges.num_bytes
    x = torch.ones(4)
    small = make_plan(runner, lambda t: double(t + 1) + 1, x)
    assert runner.bridges.num_bytes == held == 8 * 4
    x.fill_(3.0)
    assert small.replay(4).tolist() == [9.0] * 4
    assert large.replay(8).tolist() == [5.0] * 8
