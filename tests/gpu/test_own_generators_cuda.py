"""Generators of the user's own on a GPU: graphs register them, and what no watch sees draws if it is named."""

from __future__ import annotations

import pytest
import torch

from ostinato.errors import HostSyncError, UnknownGeneratorError
from ostinato.runtime import GraphConfig, Graphed, Reason, graph_break, opaque_op

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

_hidden: dict[str, torch.Generator] = {}


def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + torch.rand(x.shape, generator=generator, device=x.device)


def opened(fn, *, state=None, sizes=(2, 4), **settings) -> Graphed:
    rows = torch.zeros(4, 8, device="cuda")
    graphed = Graphed(fn, example=(rows,), state=state, config=GraphConfig(sizes=sizes, **settings))
    graphed.warm_up()
    graphed.capture().require_any()
    return graphed


@graph_break
def broken(h: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return draw(h, generator)


@pytest.mark.parametrize("settings", [{}, {"mode": "piecewise"}, {"executables": "shared"}, {"shadow_every": 1}])
def test_replays_draw_what_eager_draws_and_qualify(settings):
    own = torch.Generator("cuda")

    def fn(x):
        h = draw(x, own) * 2
        h = broken(h, own) if settings.get("mode") else draw(h, own)
        return draw(h, own)

    with opened(fn, **settings) as graphed:
        for num_rows in (4, 2):
            rows = torch.zeros(num_rows, 8, device="cuda")
            own.manual_seed(1)
            expected = [fn(rows) for _ in range(3)]
            after = own.get_state()
            own.manual_seed(1)
            for y in expected:
                torch.testing.assert_close(graphed(rows), y)
            graphed.finish_shadow()
            assert torch.equal(own.get_state(), after)
            assert graphed.explain(rows).reason is Reason.EXACT
        assert graphed.qualify().failed == []
        assert torch.equal(own.get_state(), after)


def test_graphs_that_are_closed_let_others_draw_on():
    own = torch.Generator("cuda").manual_seed(1)
    rows = torch.zeros(4, 8, device="cuda")
    first = opened(lambda x: draw(x, own))
    with opened(lambda x: draw(x, own)) as second:
        first.close()
        assert not torch.equal(second(rows), second(rows))
        second.recapture()
        assert not torch.equal(second(rows), second(rows))
    assert draw(rows, own).sum().item() > 0


def test_an_invalidated_capture_leaves_the_generator_usable():
    own = torch.Generator("cuda").manual_seed(1)
    is_broken = [False]

    def fn(x):
        y = draw(x, own)
        if is_broken[0]:
            torch.cuda.synchronize()
        return y

    rows = torch.zeros(4, 8, device="cuda")
    graphed = Graphed(fn, example=(rows,), config=GraphConfig(sizes=(4,)))
    with graphed:
        graphed.warm_up()
        is_broken[0] = True
        with pytest.raises(HostSyncError):
            graphed.capture()
    assert draw(rows, own).sum().item() > 0
    is_broken[0] = False
    with opened(fn) as graphed:
        assert not torch.equal(graphed(rows), graphed(rows))


def test_a_generator_made_in_the_callable_is_refused_by_op_and_line():
    with pytest.raises(UnknownGeneratorError, match="the callable draws") as caught:
        opened(lambda x: draw(x, torch.Generator("cuda")))
    assert __file__ in caught.value.context["at"]


@opaque_op
def hidden_draw(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(x.shape, generator=_hidden["own"], device=x.device)


def test_what_no_watch_sees_is_registered_if_it_is_named():
    own = _hidden["own"] = torch.Generator("cuda").manual_seed(1)
    rows = torch.zeros(4, 8, device="cuda")

    def fn(x):
        return x + hidden_draw(x)

    with opened(fn, state=[own]) as graphed:
        own.manual_seed(2)
        expected = [fn(rows) for _ in range(3)]
        own.manual_seed(2)
        for y in expected:
            assert torch.equal(graphed(rows), y)
        assert graphed.qualify().failed == []


def test_what_no_watch_sees_repeats_nothing_if_it_is_not_named():
    """Torch 2.11 refuses the capture; a later one that registers whatever is drawn from must draw anew."""
    own = _hidden["own"] = torch.Generator("cuda").manual_seed(1)
    rows = torch.zeros(4, 8, device="cuda")
    try:
        graphed = opened(lambda x: x + hidden_draw(x))
    except UnknownGeneratorError as error:
        assert "state=" in error.fix
        assert torch.rand(4, generator=own, device="cuda").sum().item() > 0
    else:
        with graphed:
            assert not torch.equal(graphed(rows), graphed(rows))
