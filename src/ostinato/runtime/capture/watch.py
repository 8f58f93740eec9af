"""Sees every ATen call in a capture and refuses what a graph cannot hold, before the device does.

Refusing first keeps the device's capture valid, so it can be thrown away cleanly, and lets the error name
the op and the user's line. Both backends use `OpWatch`; the simulated one extends it to record.
Kernels launched past the dispatcher (Triton, ctypes) are not seen here; the device judges those.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.errors import CaptureError, DynamicShapeError, HostSyncError, UnbrokenOpError, UnknownGeneratorError
from ostinato.runtime.breaks import BREAK_NAMESPACE
from ostinato.runtime.capture.externals import ExternalLog
from ostinato.runtime.capture.generators import GeneratorLog
from ostinato.runtime.ops import UNBROKEN_RULE, BlockReason, OpRule, classify_function, classify_op, draws, op_name
from ostinato.runtime.user_frames import user_frame

__all__ = ["FunctionWatch", "OpWatch", "refuse", "unknown_generator"]


_installing = threading.RLock()


class OpWatch(TorchDispatchMode):
    """Installed once for a whole plan; judges ops only while ``is_active`` (between begin and end).

    It stays installed across breaks because modes are a stack: user code may have pushed its own meanwhile.
    One thread has one installed at a time: torch notes in process-wide flags that a dispatch mode is on, and
    threads that enter and leave in turns would leave them set for good.

    Args:
        device_type: of the device that captures.
        generators: learns of those that ops draw from outside of segments; an op of a segment may draw from no other.
    """

    def __init__(self, device_type: str, generators: GeneratorLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type
        self._generators = generators
        self.is_active = False
        self.forbidden: frozenset[str] = frozenset()
        self.externals = ExternalLog()
        """Of the session."""
        self.draws = False
        """Whether the segment holds an op that draws random numbers. Set back by whoever begins one."""

    def __enter__(self) -> Self:
        _installing.acquire()
        try:
            super().__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            _installing.release()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            _installing.release()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own way to keep Dynamo out imports it first: seconds of a start that compiles nothing."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        judge = _untraced() if "torch._dynamo" in sys.modules else OpWatch._judge
        return judge(self, func, args, kwargs or {})

    def _judge(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not self.is_active or func.namespace == BREAK_NAMESPACE:  # such an op ends the segment itself
            for generator in () if self.is_active else _generators_of(args, kwargs):
                self._generators.note(generator)
            return func(*args, **kwargs)
        is_forbidden = op_name(func) in self.forbidden
        rule = UNBROKEN_RULE if is_forbidden else classify_op(func, args, kwargs, device_type=self._device_type)
        if rule is not None:
            raise refuse(op_name(func), rule)
        for generator in _generators_of(args, kwargs):
            self.draws = True
            if self._generators.is_missing(generator):
                raise unknown_generator(op_name(func), at=user_frame())
        self.draws = self.draws or draws(func, args, kwargs)
        return self.execute(func, args, kwargs)

    def execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op that passed; subclasses record it."""
        return func(*args, **kwargs)

    def note_external(self, tensor: torch.Tensor, op: str) -> None:
        """Enter memory that ``op`` uses and nobody in this session has made."""
        if tensor.device.type == self._device_type and not self.externals.knows(tensor):
            self.externals.note(tensor, op, user_frame(), is_break=not self.is_active)


def _generators_of(args: Any, kwargs: dict[str, Any]) -> list[torch.Generator]:
    """Those that an op is given: never in a list, and asked of every op, so nothing is entered."""
    return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]


@functools.cache
def _untraced() -> Callable[..., Any]:
    """`OpWatch` as Dynamo leaves it alone, where a captured callable is compiled."""
    return cast(Callable[..., Any], torch.compiler.disable(OpWatch._judge))


class FunctionWatch(TorchFunctionMode):
    """Judges Python-level calls that never reach the dispatcher, or reach it already decomposed.

    For the simulated backend: on a GPU such calls reach the dispatcher, and a function mode would make Dynamo
    recompile functions inside the capture. Only calls on tensors of ``device_type`` count.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.is_active = False
        self.forbidden: frozenset[str] = frozenset()
        self._device_type = device_type

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_active:
            name, rule = self.judge(func, args, kwargs)
            if rule is not None:
                raise refuse(name, rule)
        return func(*args, **kwargs)

    def judge(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, OpRule | None]:
        """The call's name, and the rule that forbids it on this device."""
        name = _function_name(func, kwargs)
        is_forbidden = "aten::" + name.removeprefix("torch.") in self.forbidden
        rule = UNBROKEN_RULE if is_forbidden else classify_function(name)
        return name, rule if rule is not None and self._concerns_device(args, kwargs) else None

    def _concerns_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is not None:
            return torch.device(device).type == self._device_type
        first = args[0] if args else None
        return not isinstance(first, torch.Tensor) or first.device.type == self._device_type


def _function_name(func: Any, kwargs: dict[str, Any]) -> str:
    name = getattr(func, "__name__", "")
    if func is torch.tensor and kwargs.get("device") is not None:
        return "torch.tensor(device=...)"
    if getattr(torch.Tensor, name, None) is func:
        return f"Tensor.{name}"
    return f"torch.{name}"


def unknown_generator(what: str, *, at: str) -> UnknownGeneratorError:
    """The typed error for a draw, at the user's file and line, from a generator that no graph knows yet."""
    return UnknownGeneratorError(
        f"{what} draws from a random generator that no warm-up run has drawn from: replays would repeat its numbers",
        fix="make the generator before warm_up, outside of the callable, and draw from it in every run; where a kernel "
        "launched by hand draws, name it: Graphed(state=...)",
        op=what,
        at=at,
    )


_ERRORS: dict[BlockReason, type[CaptureError]] = {
    BlockReason.HOST_SYNC: HostSyncError,
    BlockReason.DATA_DEPENDENT_SHAPE: DynamicShapeError,
    BlockReason.MIXES_ROWS: UnbrokenOpError,
}


def refuse(what: str, rule: OpRule, *, at: str | None = None) -> CaptureError:
    """The typed error for an op that ``rule`` forbids, with the user's file and line: ``at``, or the running one."""
    message = f"{what} cannot be captured: {rule.reason.value}"
    return _ERRORS.get(rule.reason, CaptureError)(message, fix=rule.fix, op=what, at=at or user_frame())
