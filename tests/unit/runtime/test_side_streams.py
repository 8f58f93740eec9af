"""Side streams of a captured callable and the breaks in it, with the streams of `torch.cpu`."""

import pytest
import torch

from ostinato.errors import UnjoinedStreamError
from ostinato.runtime import GraphConfig, Graphed, graph_break


@graph_break
def look(x):
    return x + 0


def graphed(program):
    return Graphed(program, example=(torch.ones(4, 2),), config=GraphConfig(mode="piecewise", sizes=(4,)))


def overlapped(side, *, joins_first):
    def program(x):
        main = torch.cpu.current_stream()
        side.wait_stream(main)
        with torch.cpu.stream(side):
            y = x * 2
        if joins_first:
            main.wait_stream(side)
        x = look(x)
        if not joins_first:
            main.wait_stream(side)
        return x + y

    return program


def test_a_fork_joined_before_the_break_replays():
    with graphed(overlapped(torch.cpu.Stream(), joins_first=True)) as g:
        g.warm_up()
        assert not g.capture().failed
        assert g(torch.full((3, 2), 3.0)).tolist() == [[9.0, 9.0]] * 3


def test_a_fork_that_is_open_at_a_break_is_refused_by_its_line():
    side = torch.cpu.Stream()
    with graphed(overlapped(side, joins_first=False)) as g:
        g.warm_up()
        with pytest.raises(UnjoinedStreamError, match="forked from the capturing stream at") as caught:
            g.capture()
    assert caught.value.context["streams"] == [f"stream {id(side):#x}"]
    assert "test_side_streams.py" in caught.value.context["at"]
