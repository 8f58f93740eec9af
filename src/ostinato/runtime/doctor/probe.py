"""Run the callable once, eagerly, under a dispatch and a function mode, and record every op.

Unlike a capture it refuses nothing, so one run shows all that speaks against capture. What needs two runs to
tell (`compare`), and what becomes of it (`judge`), is left to others. Called by `diagnose`.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.runtime.breaks import BreakPoint, handling_breaks, watching_jit
from ostinato.runtime.capture.watch import FunctionWatch
from ostinato.runtime.doctor.frames import user_stack
from ostinato.runtime.doctor.record import OpRecord, Run
from ostinato.runtime.nest import leaves, tensors
from ostinato.runtime.ops import OpRule, classify_op, find_condition, is_attention, op_name, written_tensors
from ostinato.runtime.ops.rules import JIT_RULE, LIVE_STATE_RULE, UNBROKEN_RULE

__all__ = ["call_target", "probe"]

_LIFT_OPS = {"aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy"}
_MAX_TABLE = 4096  # numbers of a host table that are compared


def call_target(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``fn``. The frame that stacks of the user's code are cut at."""
    return fn(*args, **kwargs)


def probe(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    *,
    honours_breaks: bool = True,
) -> Run:
    """One eager run of ``fn`` and the record of it. Whatever ``fn`` raises is passed on.

    Args:
        honours_breaks: whether ops in declared breaks are recorded as such; if not, breaks are plain calls.
    """
    recorder = _Recorder(device, honours_breaks=honours_breaks)
    with handling_breaks(recorder), watching_jit(recorder.meet_jit), _Functions(recorder), _Ops(recorder):
        recorder.run.outputs = call_target(fn, args, kwargs)
    recorder.finish()
    return recorder.run


class _Recorder:
    """Collects records; as break handler it runs breaks inline and remembers that it is in one."""

    def __init__(self, device: torch.device, *, honours_breaks: bool) -> None:
        self.run = Run()
        self._honours_breaks = honours_breaks
        self.device = device
        self.open_call: OpRecord | None = None
        """The Python-level call that stands for the ops inside it."""
        self._in_break = ""
        self._fresh: dict[int, tuple[StorageWeakRef, OpRecord]] = {}
        self._events: list[tuple[OpRecord, Any, Any]] = []

    def run_break(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.run.breaks.append(f"{point.name} ({point.source})")
        self.run.marked.add(getattr(point.fn, "__code__", None))
        self._in_break = point.name if self._honours_breaks else ""
        try:
            with handling_breaks(None):
                return point.fn(*args, **kwargs)
        finally:
            self._in_break = ""

    def meet_jit(self, name: str) -> None:
        self.add("jit_mark", JIT_RULE, (name,), {})

    def add(self, op: str, rule: OpRule | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpRecord:
        record = OpRecord(
            op=op,
            rule=rule,
            stack=user_stack(call_target.__code__, sys._getframe(1)),
            host_values=_host_values(args, kwargs),
            input_shapes=_shapes((args, kwargs)),
            in_break=self._in_break,
        )
        self.run.records.append(record)
        return record

    def timed(self, record: OpRecord, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``func`` and add its time to ``record``: wall time on a host, the device's own on CUDA."""
        if self.device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            result = func(*args, **kwargs)
            end.record()
            self._events.append((record, begin, end))
            return result
        began = time.perf_counter()
        result = func(*args, **kwargs)
        record.seconds += time.perf_counter() - began
        return result

    def is_fresh(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of ``tensor`` was made in this run."""
        return _storage(tensor) in self._fresh

    def note_fresh(self, record: OpRecord, result: Any, inputs: set[int]) -> None:
        for tensor in tensors(result):
            storage = _storage(tensor)
            if storage and storage not in inputs:
                self._fresh[storage] = StorageWeakRef(tensor.untyped_storage()), record

    def finish(self) -> None:
        """Read the clocks, and find tensors of the run that live on without being returned."""
        if self._events:
            torch.cuda.synchronize(self.device)
            for record, begin, end in self._events:
                record.seconds += begin.elapsed_time(end) / 1e3
        outputs, self.run.outputs = self.run.outputs, None
        del outputs  # a result may hold tensors where no walk finds them; what lives on without it was kept
        gc.collect()
        for reference, record in self._fresh.values():
            if not reference.expired():
                record.is_kept = True
        self._fresh.clear()


class _Ops(TorchDispatchMode):
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, recorder = kwargs or {}, self._recorder
        inputs = {_storage(t) for t in tensors((args, kwargs))}
        if recorder.open_call is not None:
            result = recorder.timed(recorder.open_call, func, args, kwargs)
            recorder.note_fresh(recorder.open_call, result, inputs)
            return result
        name = op_name(func)
        rule = classify_op(func, args, kwargs, device_type=recorder.device.type) or find_condition(func, args, kwargs)
        if rule is None and any(not recorder.is_fresh(t) for t in written_tensors(func, args, kwargs)):
            rule = LIVE_STATE_RULE
        record = recorder.add(name, rule, args, kwargs)
        result = recorder.timed(record, func, args, kwargs)
        record.output_shapes = _shapes(result)
        if name in _LIFT_OPS:
            record.host_values = _table(result)
            inputs = set()  # host data that was made in the run
        recorder.note_fresh(record, result, inputs)
        return result


class _Functions(FunctionWatch):
    """Records Python-level calls that no op shows: reads of host memory, and attention before it is decomposed."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__(recorder.device.type)
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, recorder = kwargs or {}, self._recorder
        if recorder.open_call is not None:
            return func(*args, **kwargs)
        name, rule = self.judge(func, args, kwargs)
        if rule is None and is_attention("aten::" + name.removeprefix("torch.")):
            rule = UNBROKEN_RULE
        if rule is None:
            return func(*args, **kwargs)
        recorder.open_call = record = recorder.add(name, rule, args, kwargs)
        try:
            result = func(*args, **kwargs)
        finally:
            recorder.open_call = None
        recorder.note_fresh(record, result, {_storage(t) for t in tensors((args, kwargs))})
        return result


def _storage(tensor: torch.Tensor) -> int:
    """Identity of the memory of ``tensor``; 0 for one without a storage (sparse)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def _host_values(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Numbers and strings among the arguments. Floats as text: then NaN equals NaN."""
    plain = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, (bool, int, float, str))]
    return tuple(repr(value) if isinstance(value, float) else value for value in plain)


def _shapes(value: Any) -> tuple[Any, ...]:
    return tuple((tuple(t.shape), t.dtype) for t in tensors(value))


def _table(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.numel() > _MAX_TABLE:
        return ()
    with torch._C.DisableTorchFunction():
        return (repr(tensor.tolist()),)
