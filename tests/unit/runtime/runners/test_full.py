"""A full graph is one segment; breaks in it are captured like any other call."""

import pytest
import torch

from ostinato.runtime.breaks import graph_break
from ostinato.runtime.runners import FullRunner


def test_one_segment_and_no_breaks(backend, make_plan):
    @graph_break
    def double(h):
        return h * 2

    x = torch.ones(4)
    plan = make_plan(FullRunner(backend), lambda t: double(t + 1) - 1, x)
    assert (plan.num_segments, plan.num_nodes, plan.breaks) == (1, 3, [])
    x.fill_(4.0)
    assert plan.replay(4).tolist() == [9.0] * 4


def test_an_error_leaves_nothing_open(backend, make_plan):
    runner = FullRunner(backend)

    def fails(t):
        raise ZeroDivisionError(t + 1)

    with pytest.raises(ZeroDivisionError):
        make_plan(runner, fails, torch.ones(2), is_warm=False)
    assert not backend.is_capturing()
    assert backend.memory().num_graphs == 0
    assert make_plan(runner, lambda t: t + 1, torch.ones(2)).replay(2).tolist() == [2.0, 2.0]
