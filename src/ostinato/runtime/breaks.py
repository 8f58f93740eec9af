"""The marks that model code places: `graph_break`, `break_graph` and `jit_mark`.

Outside a capture every mark is free: a break is a plain call, a JIT mark a set look-up. Inside one, the
runner that records the plan has installed itself as this thread's handler and decides. This file knows
no runner and no device; it is the only runtime module that models and attention import.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, overload

from torch.compiler import is_compiling

from ostinato.errors import ConfigError, JitInCaptureError
from ostinato.runtime.user_frames import user_frame

__all__ = [
    "BREAK_NAMESPACE",
    "BreakHandler",
    "BreakPoint",
    "Lowering",
    "break_graph",
    "call_break",
    "graph_break",
    "handling_breaks",
    "is_planning",
    "is_recording",
    "jit_mark",
    "recording",
    "watching_jit",
]

BREAK_NAMESPACE = "ostinato_breaks"
"""Of the ops that marked functions become for a compiler; whoever watches ops lets these pass."""

F = TypeVar("F", bound=Callable[..., Any])


class Lowering:
    """Where a runner that compiles puts the traceable stand-in of a marked function; None: it is inlined."""

    call: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakPoint:
    """One marked function: what runs eagerly between two segments."""

    name: str
    fn: Callable[..., Any]
    mutates: tuple[str, ...]
    """Names of the tensor parameters that ``fn`` writes in place."""
    clears_tail: bool = False
    """Whether ``fn`` zeroes the rows past the live size by itself, in what it returns and writes."""
    source: str
    """``file:line`` of the marked function."""
    lowering: Lowering = field(default_factory=lambda: Lowering(), compare=False, repr=False)
    """What a compiler sees in place of the function."""

    def mutated_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The values bound to ``mutates`` in one call."""
        if not self.mutates:
            return []
        bound = inspect.signature(self.fn).bind(*args, **kwargs).arguments
        return [bound[name] for name in self.mutates if name in bound]


class BreakHandler(Protocol):
    """Who decides what a break does during a capture (a runner)."""

    def run_break(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``point`` and return what the calling code goes on with."""
        ...


class _ThreadState(threading.local):
    handler: BreakHandler | None = None
    is_recording: bool = False
    is_planning: bool = False
    on_jit: Callable[[str], None] | None = None


_state = _ThreadState()
_compiled: set[str] = set()  # names of JIT marks whose compilation has happened in this process


@contextmanager
def handling_breaks(handler: BreakHandler | None, *, is_planning: bool = False) -> Iterator[None]:
    """Route this thread's breaks to ``handler``; None makes breaks plain calls (nested breaks run inline).

    ``is_planning``: the callable runs for its warm-up or capture, so a `Graphed` that it calls is inlined.
    """
    previous = _state.handler, _state.is_planning
    _state.handler, _state.is_planning = handler, is_planning
    try:
        yield
    finally:
        _state.handler, _state.is_planning = previous


@contextmanager
def recording() -> Iterator[None]:
    """Mark that a segment is being recorded on this thread; capture backends hold it from begin to end."""
    previous, _state.is_recording = _state.is_recording, True
    try:
        yield
    finally:
        _state.is_recording = previous


@contextmanager
def watching_jit(on_jit: Callable[[str], None]) -> Iterator[None]:
    """Tell ``on_jit`` of every `jit_mark` that this thread meets, compiled already or not (for the doctor)."""
    previous, _state.on_jit = _state.on_jit, on_jit
    try:
        yield
    finally:
        _state.on_jit = previous


def is_planning() -> bool:
    """Whether this thread runs a callable for its warm-up or capture, outside of its breaks."""
    return _state.is_planning


def is_recording() -> bool:
    """Whether a segment is being recorded on this thread."""
    return _state.is_recording


def call_break(point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``point`` as this thread's handler decides, or plainly if there is none."""
    handler = _state.handler
    return point.fn(*args, **kwargs) if handler is None else handler.run_break(point, args, kwargs)


@overload
def graph_break(fn: F, /) -> F: ...
@overload
def graph_break(
    *, mutates: tuple[str, ...] = (), clears_tail: bool = False, name: str | None = None
) -> Callable[[F], F]: ...
def graph_break(
    fn: F | None = None, /, *, mutates: tuple[str, ...] = (), clears_tail: bool = False, name: str | None = None
) -> Any:
    """Mark a function that must run eagerly, between two segments of a piecewise graph.

    Outside a capture, and in a full graph, it is a plain call. In a breakable capture it ends the open
    segment, runs, and the next segment begins. Tensors it returns are handed over in bridges: their shape,
    dtype and device may not differ from those at capture (`BreakOutputError`). On replay the rows of bridges
    and of ``mutates`` past the live size are zeroed. A break met inside another runs inline.

    Args:
        fn: the function to mark.
        mutates: names of tensor parameters that ``fn`` writes in place.
        clears_tail: ``fn`` knows the live size and zeroes the rows past it itself; then nobody does so again, which
            would be a kernel in every padded step.
        name: what reports call it; the qualified name by default.

    Raises:
        ConfigError: ``mutates`` names something that is not a parameter.
    """

    def mark(fn: F) -> F:
        parameters = _parameters(fn)
        unknown = [n for n in mutates if n not in parameters]
        if unknown:
            raise ConfigError(
                f"graph_break(mutates=...) of {_label(fn)} names no parameter: {unknown}",
                fix=f"use names among {list(parameters)}",
            )
        lowering = Lowering()
        point = BreakPoint(
            name=name or _label(fn),
            fn=fn,
            mutates=tuple(mutates),
            clears_tail=clears_tail,
            source=_source(fn),
            lowering=lowering,
        )

        @functools.wraps(fn)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return fn(*args, **kwargs) if lowering.call is None else lowering.call(*args, **kwargs)
            return call_break(point, args, kwargs)

        marked.__ostinato_break__ = point  # type: ignore[attr-defined]
        return marked  # type: ignore[return-value]

    return mark if fn is None else mark(fn)


def _parameters(fn: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except ValueError:  # a builtin such as torch.nonzero tells no signature
        return []


def _label(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)


def _source(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)  # partials, modules and builtins have none
    return "unknown" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


@graph_break
def break_graph() -> None:
    """An empty break: ends the open segment and begins the next one."""


def jit_mark(name: str) -> None:
    """Say that the work which follows compiles, autotunes or loads on its first call under ``name``.

    ``name`` must carry everything that specialises the kernel. Raises `JitInCaptureError` when the first
    call falls into a capture, which would fail on a GPU or record a half-initialised kernel.
    """
    if _state.on_jit is not None:
        _state.on_jit(name)
    if name in _compiled:
        return
    if _state.is_recording:
        raise JitInCaptureError(
            f"{name!r} would compile for the first time inside a capture",
            fix="call it once during warm_up with the same specialisation",
            kernel=name,
            at=user_frame(),
        )
    _compiled.add(name)
