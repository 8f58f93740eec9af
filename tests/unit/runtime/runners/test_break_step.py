"""What a break hands over: fixed addresses, checked results, cleared tails."""

import pytest
import torch

from ostinato.errors import BreakOutputError
from ostinato.runtime.breaks import graph_break
from ostinato.runtime.runners import BreakableRunner


@pytest.fixture
def plan_of(backend, make_plan):
    """``plan_of(break_fn)``: the plan of ``break(x + 1)`` with the result used by a second segment."""

    def make(fn, use=lambda result: result * 1, **marks):
        marked = graph_break(**marks)(fn) if marks else graph_break(fn)
        x = torch.arange(4.0).view(4, 1).repeat(1, 2)
        return make_plan(BreakableRunner(backend), lambda t: use(marked(t + 1)), x), x

    return make


def test_a_fresh_tensor_every_time_is_read_where_it_was_captured(plan_of):
    kept = []

    def fresh(h):
        kept.append(h * 10)  # kept, so that no two have the same address
        return kept[-1]

    plan, x = plan_of(fresh)
    for value in (1.0, 2.0, 3.0):
        x.fill_(value)
        assert torch.equal(plan.replay(4), (x + 1) * 10)
    assert len({t.data_ptr() for t in kept}) == len(kept)


def test_an_argument_is_handed_on_without_a_bridge(backend, make_plan):
    @graph_break(mutates=("h",))
    def in_place(h):
        return h.mul_(3)

    runner = BreakableRunner(backend)
    x = torch.ones(4, 2)
    plan = make_plan(runner, lambda t: in_place(t + 1) + 0, x)
    assert runner.bridges.num_bytes == 0
    x.fill_(4.0)
    assert plan.replay(4).eq(15.0).all()


def test_an_argument_that_is_another_tensor_later_is_refused(plan_of):
    same = {"is": True}
    plan, _ = plan_of(lambda h: h if same["is"] else h * 10)
    plan.replay(4)
    same["is"] = False
    with pytest.raises(BreakOutputError, match="its argument, as at capture"):
        plan.replay(4)


@pytest.mark.parametrize(
    ("captured", "later", "what"),
    [
        (lambda h: h * 1, lambda h: h[:2] * 1, "[4, 2] float32"),
        (lambda h: h * 1, lambda h: h[:1] * 1, "[1, 2] float32"),  # would broadcast
        (lambda h: h * 1, lambda h: h.sum(0), "[2] float32"),  # another rank, would broadcast
        (lambda h: h * 1, lambda h: h.double(), "[4, 2] float64"),  # would be converted
        (lambda h: h * 1, lambda h: h.to("meta"), "on meta"),
        (lambda h: h * 1, lambda h: (h * 1,), "('tuple', ('tensor',))"),
        (lambda h: h * 1, lambda h: None, "NoneType"),
        (lambda h: (h * 1, 3), lambda h: (h * 1, 4), "got=4"),
        (lambda h: (h * 1, 3), lambda h: (h * 1, 3.0), "float"),
        (lambda h: {"a": h * 1}, lambda h: {"b": h * 1}, "'b'"),
    ],
    ids=["rows", "one row", "rank", "dtype", "device", "structure", "none", "value", "type", "name"],
)
def test_another_result_than_at_capture_is_refused(plan_of, captured, later, what):
    now = {"fn": captured}

    def changing(h):
        return now["fn"](h)

    plan, _ = plan_of(changing, use=lambda result: next(iter(_tensors(result))) * 1, name="layers.1.attn")
    plan.replay(4)
    now["fn"] = later
    with pytest.raises(BreakOutputError, match=r"break 'layers.1.attn' returned another result") as caught:
        plan.replay(4)
    assert what in str(caught.value)
    assert caught.value.context["source"].startswith(__file__)
    now["fn"] = captured
    plan.replay(4)  # still whole


def _tensors(result):
    from ostinato.runtime.nest import tensors

    return tensors(result)


def test_rows_past_the_live_size_are_cleared_at_the_hand_over(plan_of):
    plan, x = plan_of(lambda h: h + 100)
    x.fill_(1.0)
    assert plan.replay(3)[:, 0].tolist() == [102.0, 102.0, 102.0, 0.0]
    assert plan.replay(4)[:, 0].tolist() == [102.0] * 4


def test_mutated_arguments_are_cleared_too_and_states_are_not(backend, make_plan):
    @graph_break(mutates=("out",))
    def attend(h, out):
        out.copy_(h + 100)
        return torch.full((4, 2), 7.0)  # as many rows as the bucket, but no row a token

    def program(t):
        out = torch.empty_like(t)
        state = attend(t, out)
        return out + 0, state + 0

    x = torch.ones(4, 2)
    plan = make_plan(BreakableRunner(backend), program, x)
    out, state = plan.replay(1)
    assert out[:, 0].tolist() == [101.0, 0.0, 0.0, 0.0]
    assert state.eq(7.0).all()


def test_a_break_that_clears_its_tail_is_left_to_it(backend, make_plan):
    num_live = 4

    @graph_break(mutates=("out",), clears_tail=True)
    def attend(h, out):
        out.copy_(h + 100)
        out[num_live:] = -1.0  # zeros, if it kept its word

    def program(t):
        out = torch.empty_like(t)
        attend(t, out)
        return out + 0

    plan = make_plan(BreakableRunner(backend), program, torch.ones(4, 2))
    num_live = 1
    assert plan.replay(1)[:, 0].tolist() == [101.0, -1.0, -1.0, -1.0]


def test_arguments_are_owned(backend, make_plan):
    """PITFALLS: a weakly held argument is recycled by a later capture in the same pool."""
    seen = []

    @graph_break
    def look(h):
        seen.append(h.clone())

    def program(t):
        look(t + 1)
        return t * 2

    runner = BreakableRunner(backend)
    x = torch.ones(64, 2)
    first = make_plan(runner, program, x)
    make_plan(runner, lambda t: (t * 50) * 2, torch.ones(32, 2))
    first.replay(64)
    assert seen[-1].eq(2.0).all()
