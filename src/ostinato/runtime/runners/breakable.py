"""`BreakableRunner`: segments between break marks, made at capture without a compiler.

The first segment opens before the callable and the last closes after it; each break mark ends the open one,
runs eagerly on real data, and opens the next. Segments that recorded nothing are dropped, so that
consecutive breaks cost no empty graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ostinato.errors import CaptureError
from ostinato.runtime.breaks import BreakPoint, handling_breaks
from ostinato.runtime.buffers import BridgePool
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.nest import tensors
from ostinato.runtime.ops import ATTENTION_OPS
from ostinato.runtime.runners.break_arguments import classify_arguments
from ostinato.runtime.runners.break_record import BreakRecord
from ostinato.runtime.runners.break_step import BreakStep, observe_break
from ostinato.runtime.runners.layout import RowLayout
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.runner import Call

__all__ = ["BreakableRunner"]


class BreakableRunner:
    """`Runner` for `RuntimeMode.PIECEWISE` with the breakable partition.

    Args:
        forbid: names of ops that no segment may hold.
    """

    runtime_mode = RuntimeMode.PIECEWISE

    def __init__(
        self,
        backend: CaptureBackend,
        *,
        bridges: BridgePool | None = None,
        forbid: frozenset[str] = ATTENTION_OPS,
        owns_arguments: bool = False,
    ) -> None:
        self._backend = backend
        self._owns_arguments = owns_arguments
        self._forbid = forbid
        self._layout = RowLayout()
        self._records: dict[GraphKey, BreakRecord] = {}  # of the last warm-up
        self.bridges = BridgePool() if bridges is None else bridges

    def warm_up(self, key: GraphKey, call: Call) -> Any:
        """See `Runner.warm_up`."""
        self._records[key] = record = BreakRecord()
        observer = _Observer(self._layout, record, key.num_tokens)
        with self._backend.session(), handling_breaks(observer, is_planning=True):
            return call()

    def capture(self, key: GraphKey, call: Call) -> CapturedPlan:
        """See `Runner.capture`."""
        keep = _itself if self._owns_arguments else self._backend.borrow
        record = self._records.get(key, BreakRecord())
        plan = CapturedPlan(key=key, generation=self._backend.generation)
        recorder = _Recorder(self._backend, plan, self._layout, record, self.bridges, self._forbid, keep)
        try:
            with self._backend.session(), handling_breaks(recorder, is_planning=True):
                return recorder.record(call)
        except BaseException:
            recorder.plan.close()
            raise


class _Observer:
    """Break handler of warm-up: runs breaks inline and notes which hand-overs are batch-major."""

    def __init__(self, layout: RowLayout, record: BreakRecord, num_rows: int) -> None:
        self._layout = layout
        self._record = record
        self._num_rows = num_rows
        self._index = 0

    def run_break(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index, self._index = self._index, self._index + 1
        self._record.add(point, args, kwargs)
        with handling_breaks(None):
            result = point.fn(*args, **kwargs)
        observe_break(self._layout, index, point, args, kwargs, result, self._num_rows)
        return result


class _Recorder:
    """Break handler of capture: splits the recording at each break."""

    def __init__(
        self,
        backend: CaptureBackend,
        plan: CapturedPlan,
        layout: RowLayout,
        record: BreakRecord,
        bridges: BridgePool,
        forbid: frozenset[str],
        keep: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.plan = plan
        self._keep = keep
        self._backend = backend
        self._layout = layout
        self._record = record
        self._bridges = bridges
        self._forbid = forbid
        self._num_breaks = 0
        self._num_bridges = 0
        self._failed: BaseException | None = None

    def record(self, call: Call) -> CapturedPlan:
        self._backend.begin(forbid=self._forbid)
        outputs = call()
        if self._failed is not None:
            raise CaptureError(
                "an exception inside a break was swallowed by the callable", fix="let it surface: the plan has a hole"
            ) from self._failed
        self._end_segment(runs_next=False)
        self.plan.outputs = outputs
        self.plan.externals = self._backend.externals()
        self.plan.num_missing_breaks = max(0, len(self._record) - self._num_breaks)
        return self.plan

    def run_break(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._failed is not None:  # the callable goes on after a failed break: nothing is recorded any more
            with handling_breaks(None):
                return point.fn(*args, **kwargs)
        self._record.check(self._num_breaks, point, args, kwargs)
        self._end_segment(runs_next=True)
        for tensor in tensors((args, kwargs)):
            self._backend.note_external(tensor, f"break {point.name}")
        bridges = [bridge for entry in self.plan.break_steps for bridge in entry.bridges]
        arguments = classify_arguments(self._backend, (args, kwargs), bridges)
        try:
            step = BreakStep(
                point,
                args,
                kwargs,
                index=self._num_breaks,
                num_rows=self.plan.key.num_tokens,
                layout=self._layout,
                bridges=self._bridges,
                next_bridge=self._num_bridges,
                keep=self._keep,
                arguments=arguments,
            )
        except BaseException as error:
            self._failed = error
            raise
        self._num_breaks += 1
        self._num_bridges += len(step.bridges)
        self.plan.entries.append(step)
        self._backend.begin(forbid=self._forbid)
        return step.hand_over()

    def _end_segment(self, *, runs_next: bool) -> None:
        """Close the open segment. If a break ``runs_next``, execute it, so that the break sees real data."""
        graph = self._backend.end()
        if graph.num_nodes == 0:
            graph.close()
            return
        self.plan.entries.append(graph)
        if runs_next and not self._backend.runs_while_recording:
            graph.replay()


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
