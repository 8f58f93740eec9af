"""An eager run, taken apart as a capture takes it apart: ops between breaks, with what each leaves.

Held against a replay (`bisect`) or against a run of another size (`mixing_op`). Values are copied, so this is for
finding a fault that is known to be there, not for every case. Runs under torch's dispatch mode: work launched past
the dispatcher is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.runtime.breaks import BREAK_NAMESPACE, BreakPoint, handling_breaks
from ostinato.runtime.nest import tensors
from ostinato.runtime.ops import UNINITIALISED_OPS, op_name, written_tensors
from ostinato.runtime.runners import BreakStep, CapturedPlan, break_inputs, find_gap

__all__ = ["EagerTrace", "TracedBreak", "TracedOp", "mixing_op", "trace_eager"]

MAX_TRACE_BYTES: Final = 2 << 30
"""Ops beyond it are listed without what they leave."""


@dataclass(frozen=True, slots=True, eq=False)
class TracedOp:
    """One op that computes or writes."""

    op: str
    written: list[torch.Tensor]
    """Copies of its results and of what it wrote in place; empty beyond `MAX_TRACE_BYTES`."""
    is_state: list[bool]
    """Which of these lie in memory that the run found there: padded rows may write to it what they like."""


@dataclass(frozen=True, slots=True, eq=False)
class TracedBreak:
    """One break, tails cleared as a replay clears them."""

    name: str
    inputs: list[torch.Tensor]
    handed: list[torch.Tensor]


@dataclass(slots=True)
class EagerTrace:
    """Ops in the segments between breaks; there is one segment more than breaks."""

    segments: list[list[TracedOp]] = field(default_factory=lambda: [[]])
    breaks: list[TracedBreak] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    """Copies of what was returned."""
    addresses: set[int] = field(default_factory=set)
    """Of the memory that was returned."""


def trace_eager(call: Callable[[], Any], plan: CapturedPlan | None, *, num_live: int, num_rows: int) -> EagerTrace:
    """Run ``call`` eagerly and note all of it.

    Args:
        plan: whose breaks cut the run; None runs breaks inline, as in a full graph.
        num_live: rows past it are cleared at hand-overs that the plan clears.
        num_rows: of the batch, padded rows included.
    """
    recorder = _Recorder()
    steps = [] if plan is None else [entry for entry in plan.entries if isinstance(entry, BreakStep)]
    handler = _Breaks(recorder, steps, num_live, num_rows) if steps else None
    with handling_breaks(handler), recorder:
        outputs = call()
    recorder.trace.outputs = [tensor.clone() for tensor in tensors(outputs)]
    recorder.trace.addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors(outputs)}
    return recorder.trace


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = EagerTrace()
        self.is_active = True
        self._num_bytes = 0
        self._produced: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.is_active or func.namespace == BREAK_NAMESPACE:
            return result
        name = op_name(func)
        given = {t.untyped_storage()._cdata for t in tensors((args, kwargs))}
        fresh = [t for t in tensors(result) if t.untyped_storage()._cdata not in given]
        self._produced |= {t.untyped_storage()._cdata for t in fresh}
        is_mutable = func._schema.is_mutable
        is_constant = name.startswith("aten::lift")  # host data: a capture bakes it, and records no call
        if not is_constant and name not in UNINITIALISED_OPS and (fresh or is_mutable):
            written = [*fresh, *written_tensors(func, args, kwargs)]
            is_state = [t.untyped_storage()._cdata not in self._produced for t in written]
            self.trace.segments[-1].append(TracedOp(name, self._copies(written), is_state))
        return result

    def _copies(self, written: list[torch.Tensor]) -> list[torch.Tensor]:
        self._num_bytes += sum(t.numel() * t.element_size() for t in written)
        return [] if self._num_bytes > MAX_TRACE_BYTES else [t.clone() for t in written]


class _Breaks:
    """Break handler: runs each break inline and starts the next segment."""

    def __init__(self, recorder: _Recorder, steps: list[BreakStep], num_live: int, num_rows: int) -> None:
        self._recorder = recorder
        self._steps = steps
        self._num_live, self._num_rows = num_live, num_rows

    def run_break(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trace, self._recorder.is_active = self._recorder.trace, False
        inputs = [t.clone() for t in break_inputs(point, args, kwargs)]
        with handling_breaks(None):
            result = point.fn(*args, **kwargs)
        handed = list(tensors((result, point.mutated_arguments(args, kwargs))))
        index = len(trace.breaks)
        if index < len(self._steps) and self._num_live < self._num_rows:
            for tensor, is_cleared in zip(handed, self._steps[index].is_cleared, strict=False):
                if is_cleared:
                    tensor[self._num_live :].zero_()
        trace.breaks.append(TracedBreak(point.name, inputs, [t.clone() for t in handed]))
        trace.segments.append([])
        self._recorder.is_active = True
        return result


def mixing_op(exact: EagerTrace, padded: EagerTrace, *, num_live: int, num_rows: int) -> str:
    """The first op whose live rows differ between a run without padded rows, or with others in their place, and a run
    with them; an empty string if there is none."""
    ours = [op for segment in exact.segments for op in segment]
    theirs = [op for segment in padded.segments for op in segment]
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a.op != b.op:
            break  # the two runs take different paths from here on
        for one, other, is_state in zip(a.written, b.written, b.is_state, strict=False):
            if is_state:
                continue
            one, other = _cut(one, num_live, num_rows), _cut(other, num_live, num_rows)
            if one.shape == other.shape and find_gap(one, other, is_exact=False, is_other_shape=True)[0] is not None:
                return f"op {index} {a.op}"
    return ""


def _cut(tensor: torch.Tensor, num_live: int, num_rows: int) -> torch.Tensor:
    return tensor[:num_live] if tensor.dim() and tensor.shape[0] == num_rows else tensor
