"""Refuses a Triton kernel that would compile, or tune itself, for the first time in a segment, and names it.

Kernels whose author placed a `jit_mark` are refused by that; this is for all others that Triton compiles here. It asks
Triton to call back on a miss of its cache in memory, before it compiles or loads, which leaves Triton's own state as it
was. A Triton that is first imported in the segment is asked as soon as it is there. A kernel that was compiled by
`kernel.warmup` and never launched is loaded in the capture, unseen: to stop Triton between its loading steps would
leave a kernel that cannot be launched later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ostinato.errors import JitInCaptureError
from ostinato.runtime.breaks import is_recording
from ostinato.runtime.capture.arrival import on_arrival
from ostinato.runtime.capture.diverted import diverted
from ostinato.runtime.user_frames import user_frame

__all__ = ["refusing_jit"]


@contextmanager
def refusing_jit() -> Iterator[None]:
    """Hold it while a segment is recorded. Nothing is imported: without Triton there is nothing to refuse."""
    with ExitStack() as stack:
        triton = sys.modules.get("triton")
        if triton is None:
            stack.enter_context(on_arrival("triton", lambda triton: _ask(triton, stack)))
        else:
            _ask(triton, stack)
        yield


def _ask(triton: Any, stack: ExitStack) -> None:
    """Put our hooks into Triton, until ``stack`` is closed."""
    place = _hook_place(triton)
    if place is not None:
        stack.enter_context(diverted(*place, _cache_hook))
    tuner: Any = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if hasattr(tuner, "_bench"):
        stack.enter_context(diverted(tuner, "_bench", _bench))


def _hook_place(triton: Any) -> tuple[Any, str] | None:
    """Owner and name of the hook before compilation: a knob since Triton 3.4, before that an attribute of a class."""
    knobs = getattr(getattr(triton, "knobs", None), "runtime", None)
    if hasattr(knobs, "jit_cache_hook"):
        return knobs, "jit_cache_hook"
    function = getattr(triton, "JITFunction", None)
    return (function, "cache_hook") if hasattr(function, "cache_hook") else None


def _cache_hook(previous: Callable[..., Any] | None) -> Callable[..., Any]:
    def refuse_or_pass(*args: Any, **kwargs: Any) -> Any:
        if is_recording():  # on this thread; others may compile
            function = kwargs.get("fn")
            name = getattr(function, "name", None) or str(kwargs.get("repr", "a kernel"))
            raise _refused(name, "compile")
        return None if previous is None else previous(*args, **kwargs)  # true: Triton must not compile

    return refuse_or_pass


def _bench(original: Callable[..., Any]) -> Callable[..., Any]:
    def bench(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if is_recording():
            function = getattr(tuner, "base_fn", None)
            raise _refused(getattr(function, "__name__", "a kernel"), "tune itself")
        return original(tuner, *args, **kwargs)

    return bench


def _refused(name: str, what: str) -> JitInCaptureError:
    return JitInCaptureError(
        f"Triton kernel {name!r} would {what} for the first time inside a capture",
        fix="launch it once during warm_up with the same specialisation",
        kernel=name,
        at=user_frame(),
    )
