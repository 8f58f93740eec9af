"""Callables that draw from a `torch.Generator` of the user's own: replays, qualification, captures between steps."""

from __future__ import annotations

import pytest
import torch

from ostinato.errors import UnknownGeneratorError
from ostinato.runtime import GraphConfig, Graphed, Reason, graph_break, opaque_op

ROWS = torch.zeros(4, 8)
HIDDEN = torch.Generator()


def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + torch.rand(x.shape, generator=generator)


def shift(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One number for all rows: what is drawn afterwards does not depend on how many there are."""
    return x + torch.rand(1, generator=generator)


def opened(fn, **settings) -> Graphed:
    state = settings.pop("state", None)
    graphed = Graphed(fn, example=(ROWS,), state=state, config=GraphConfig(sizes=(4,), **settings))
    graphed.warm_up()
    graphed.capture()
    return graphed


def drawing(own: torch.Generator, mode: str):
    """A callable that draws from ``own`` twice: in its graphs, or, in pieces, in a segment and in a break."""

    @graph_break
    def broken(h: torch.Tensor) -> torch.Tensor:
        return draw(h, own)

    @graph_break
    def shifted(h: torch.Tensor) -> torch.Tensor:
        return shift(h, own)

    if mode == "full":
        return lambda x: draw(shift(x, own) * 2, own)
    if mode == "breakable":
        return lambda x: broken(shift(x, own) * 2)
    return lambda x: broken(shifted(x) * 2)  # traced: Dynamo takes no generator outside of a break


MODES = {
    "full": {},
    "breakable": {"mode": "piecewise"},
    "fx": {"mode": "piecewise", "partition": "fx"},
    "inductor": {"mode": "piecewise", "partition": "inductor"},
}


@pytest.mark.parametrize("mode", MODES)
def test_replays_draw_what_eager_draws_and_qualify(mode):
    own = torch.Generator()
    fn = drawing(own, mode)
    with opened(fn, **MODES[mode]) as graphed:
        own.manual_seed(1)
        expected = [fn(ROWS) for _ in range(3)]
        after = own.get_state()
        own.manual_seed(1)
        assert all(torch.equal(graphed(ROWS), y) for y in expected)
        assert torch.equal(own.get_state(), after)
        assert graphed.qualify().failed == [] and graphed.explain(ROWS).reason is Reason.EXACT
        assert torch.equal(own.get_state(), after), "qualification leaves no trace"
        graphed.measure(budget_seconds=0.01)
        assert torch.equal(own.get_state(), after), "nor does measuring"


def test_a_generator_made_in_the_callable_is_refused_by_op_and_line():
    with pytest.raises(UnknownGeneratorError, match="aten::rand") as caught:
        opened(lambda x: draw(x, torch.Generator()))
    assert __file__ in caught.value.context["at"]


def test_late_captures_put_back_what_they_are_the_first_to_draw_from():
    own = torch.Generator().manual_seed(1)
    before = own.get_state()
    with Graphed(lambda x: draw(x, own), example=(ROWS,), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.defer_capture()
        graphed.capture_late(graphed.pending)
        assert graphed.explain(ROWS).reason is Reason.EXACT
        assert torch.equal(own.get_state(), before)


@opaque_op
def hidden_draw(x: torch.Tensor) -> torch.Tensor:
    """As a kernel launched by hand would: no watch sees which generator it draws from."""
    return torch.rand(x.shape, generator=HIDDEN)


@pytest.mark.parametrize("is_named", [True, False])
def test_what_no_watch_sees_is_put_back_if_it_is_named(is_named):
    with opened(lambda x: x + hidden_draw(x), state={"random": [HIDDEN]} if is_named else None) as graphed:
        before = HIDDEN.get_state()
        assert bool(graphed.qualify().failed) is not is_named
        assert torch.equal(HIDDEN.get_state(), before) is is_named
