"""`Graphed.bisect`: the planted segment, op or break is named, and the sound ones are not."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphKey, graph_break
from ostinato.runtime.capture import GraphStep
from ostinato.runtime.runners import BreakStep, CapturedPlan

ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@graph_break
def doubled(h: torch.Tensor) -> torch.Tensor:
    return h * 2


@graph_break(mutates=("out",))
def summed(h: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(h.cumsum(1))


def program(x: torch.Tensor) -> torch.Tensor:
    residual = x + 1
    h = doubled(residual.tanh())
    h = residual + h.sigmoid() * 3
    out = torch.empty_like(h)
    summed(h, out)
    return (out - residual).exp()


class Tampered:
    """A segment in which one call is followed by an error in what it left.

    Args:
        graph: the sound segment.
        index: of the call.
        is_whole: whether it hides its calls, as a device does.
    """

    def __init__(self, graph, index: int, *, is_whole: bool = False) -> None:
        self.num_nodes, self.baked, self.close = graph.num_nodes, graph.baked, graph.close
        self._graph, self._index, self._is_whole = graph, index, is_whole

    def replay(self) -> None:
        with torch.inference_mode():
            for step in self._steps():
                step.run()

    def launcher(self):
        return self.replay

    def steps(self):
        return None if self._is_whole else self._steps()

    def _steps(self):
        steps = self._graph.steps()
        bad = steps[self._index]

        def run() -> None:
            bad.run()
            bad.written[0].add_(0.5)

        steps[self._index] = GraphStep(bad.op, run, bad.written)
        return steps


def tamper(plan: CapturedPlan, segment: int, call: int, *, is_whole: bool = False) -> None:
    places = [i for i, entry in enumerate(plan.entries) if not isinstance(entry, BreakStep)]
    plan.entries[places[segment]] = Tampered(plan.entries[places[segment]], call, is_whole=is_whole)
    plan._calls.clear()


def captured(ready) -> tuple[object, GraphKey, CapturedPlan]:
    graphed = ready(program, ROWS, sizes=(4,), mode="piecewise")
    key = graphed.keys[0]
    assert graphed.plans[key].num_segments == 3
    return graphed, key, graphed.plans[key]


def test_a_sound_plan_has_no_culprit(ready):
    graphed, key, _ = captured(ready)
    assert graphed.bisect(key) == []


def test_the_op_of_the_planted_segment_is_named(ready):
    graphed, key, plan = captured(ready)
    tamper(plan, 1, 1)
    (culprit,) = graphed.bisect(key)
    assert str(culprit) == "segment 1, op 1 aten::mul"
    assert "largest difference 0.5" in culprit.what
    (report,) = graphed.qualify().keys
    assert report.findings[0].where == "segment 1, op 1 aten::mul"


def test_segments_are_judged_on_their_own(ready):
    """What follows a bad segment is fed what eager computed, so the sound one between two bad ones is not blamed."""
    graphed, key, plan = captured(ready)
    tamper(plan, 0, 0)
    tamper(plan, 2, 1)
    assert [str(c) for c in graphed.bisect(key)] == ["segment 0, op 0 aten::add", "segment 2, op 1 aten::exp"]


def test_a_segment_that_cannot_be_taken_apart_shows_in_what_it_hands_over(ready):
    graphed, key, plan = captured(ready)
    tamper(plan, 1, 1, is_whole=True)
    assert [str(c) for c in graphed.bisect(key)] == ["segment 1"]


def test_a_break_that_hands_over_at_a_stale_address(ready, monkeypatch):
    graphed, key, _ = captured(ready)
    monkeypatch.setattr(BreakStep, "_hand_over", lambda self, *args, **kwargs: None)
    (culprit,) = graphed.bisect(key)
    assert str(culprit) == "the hand-over of break 0 doubled"


def test_a_full_graph_is_one_segment(ready):
    graphed = ready(program, ROWS, sizes=(4,), mode="full")
    key = graphed.keys[0]
    tamper(graphed.plans[key], 0, 2)
    (culprit,) = graphed.bisect(key)
    assert (culprit.segment, culprit.op_index, culprit.op) == (0, 2, "aten::mul")
