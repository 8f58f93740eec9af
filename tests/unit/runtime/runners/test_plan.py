"""A plan owns its segments: it replays in order, reports, and closes once."""

import pytest
import torch

from ostinato.errors import ClosedError
from ostinato.runtime.breaks import graph_break
from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.runners import BreakableRunner, CapturedPlan

KEY = GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=2)


class Segment:
    def __init__(self, log, name):
        self.num_nodes = 3
        self._log, self._name = log, name

    def replay(self):
        self._log.append(self._name)

    def close(self):
        self._log.append(f"close {self._name}")


def test_order_counts_and_close():
    log = []
    plan = CapturedPlan(key=KEY, entries=[Segment(log, "a"), Segment(log, "b")], outputs="out")
    assert (plan.num_segments, plan.num_nodes) == (2, 6)
    assert plan.replay(1) == "out"
    plan.close()
    plan.close()
    assert log == ["a", "b", "close a", "close b"]
    assert plan.outputs is None
    with pytest.raises(ClosedError, match="plan of PIECEWISE tokens=2 was closed"):
        plan.replay(1)


def test_breaks_are_named_with_their_line(backend, make_plan):
    @graph_break(name="layers.3.attention")
    def attend(h):
        return h

    plan = make_plan(BreakableRunner(backend), lambda t: attend(t + 1) + 1, torch.ones(2))
    (text,) = plan.breaks
    assert text.startswith(f"layers.3.attention ({__file__}:")
