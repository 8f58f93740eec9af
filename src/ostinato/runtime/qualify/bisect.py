"""Which segment, op or break of a plan goes wrong first.

The plan is replayed entry by entry beside an eager run of the same batch. Where an entry leaves something else than
eager, it is named, and what eager computed is put in its place: it is turned eager, so that the entries after it are
judged on their own. Graphs that can be taken apart (simulated) name the op too; on a device that does not tell,
a segment shows only in what it hands to a break or returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.runtime.capture import CapturedGraph
from ostinato.runtime.nest import tensors
from ostinato.runtime.qualify.trace import EagerTrace
from ostinato.runtime.runners import BreakStep, CapturedPlan, find_gap

__all__ = ["Culprit", "bisect_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One entry of a plan that does not do what eager does; or, with neither segment nor break, an op with which the
    callable itself lets padded rows reach live ones: its graph does what eager does, and is wrong all the same."""

    segment: int | None = None
    """Position among the segments, from 0; None for a break, and where no entry is at fault."""
    op: str = ""
    op_index: int | None = None
    """Position among the calls of the segment."""
    break_name: str = ""
    what: str = ""

    def __str__(self) -> str:
        if self.break_name:
            return f"the hand-over of break {self.break_name}"
        if self.segment is None:
            return f"no segment: in eager runs too padded rows reach live ones, first at {self.op or 'an unknown op'}"
        return f"segment {self.segment}" + (f", op {self.op_index} {self.op}" if self.op else "")


def bisect_plan(plan: CapturedPlan, trace: EagerTrace, *, num_live: int, is_exact: bool) -> list[Culprit]:
    """All entries that go wrong, first one first.

    The static buffers and the state must be those with which ``trace`` began.
    """
    lockstep = _Lockstep(trace, num_live, plan.key.num_tokens, is_exact)
    with torch.inference_mode():  # what was captured in inference mode can be written in it alone
        for entry in plan.entries:
            if isinstance(entry, BreakStep):
                lockstep.run_break(entry)
            else:
                lockstep.run_segment(entry)
        lockstep.look_at_outputs(plan.outputs)
    return lockstep.culprits


class _Lockstep:
    def __init__(self, trace: EagerTrace, num_live: int, num_rows: int, is_exact: bool) -> None:
        self.culprits: list[Culprit] = []
        self._trace = trace
        self._num_live, self._num_rows = num_live, num_rows
        self._is_exact = is_exact
        self._num_breaks = 0
        self._segment = -1

    def run_segment(self, graph: CapturedGraph) -> None:
        self._segment += 1
        traced = self._trace.segments[self._num_breaks] if self._num_breaks < len(self._trace.segments) else []
        steps = graph.steps()
        if steps is None or [step.op for step in steps] != [op.op for op in traced]:
            graph.replay()
            return
        for index, (step, op) in enumerate(zip(steps, traced, strict=True)):
            step.run()
            what = self._mend(step.written, op.written)
            if what:
                self._blame(Culprit(segment=self._segment, op=step.op, op_index=index, what=what))

    def run_break(self, step: BreakStep) -> None:
        traced = self._trace.breaks[self._num_breaks] if self._num_breaks < len(self._trace.breaks) else None
        self._num_breaks += 1
        if traced is not None and (what := self._mend(step.inputs, traced.inputs)):
            self._blame(Culprit(segment=max(self._segment, 0), what=what))
        step.run(self._num_live, self._num_rows)
        if traced is not None and (what := self._mend(step.handed, traced.handed)):
            self._blame(Culprit(break_name=f"{self._num_breaks - 1} {step.point.name}", what=what))

    def look_at_outputs(self, outputs: Any) -> None:
        """What the last segment returns."""
        what = self._mend(list(tensors(outputs)), self._trace.outputs)
        if what:
            self._blame(Culprit(segment=max(self._segment, 0), what=what))

    def _blame(self, culprit: Culprit) -> None:
        """A segment is named once, by its first fault."""
        if culprit.segment is None or all(known.segment != culprit.segment for known in self.culprits):
            self.culprits.append(culprit)

    def _mend(self, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
        """What differs first in the live rows, or an empty string; all that differs takes the values of eager."""
        said = ""
        for ours, right in zip(got, expected, strict=False):
            if ours.shape != right.shape or ours.dtype != right.dtype:
                continue
            gap, _ = find_gap(self._live(right), self._live(ours), is_exact=self._is_exact)
            if gap is not None:
                said = said or gap.detail
                ours.copy_(right)
        return said

    def _live(self, tensor: torch.Tensor) -> torch.Tensor:
        is_by_row = tensor.dim() > 0 and tensor.shape[0] == self._num_rows
        return tensor[: self._num_live] if is_by_row else tensor
