"""Trace a callable once with Dynamo, as one graph, and say where it cannot be traced.

Sizes that differ from key to key become symbols, all else is a constant under a guard. Size 1 is traced by
itself, since compilers treat it specially: the runner sees to that. Dynamo's settings and caches are the
process's, so they are changed for the trace alone, and nothing that others compiled is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ostinato.errors import OstinatoError, UntraceableError
from ostinato.runtime.capture.watch import refuse
from ostinato.runtime.nest import tensors
from ostinato.runtime.ops import UNBROKEN_RULE, op_name
from ostinato.runtime.runners.piecewise.program import GraphCompiler, TracedProgram
from ostinato.runtime.user_frames import user_frame

__all__ = ["trace"]

_NOT_THE_USERS = (str(Path(__file__).parents[2]), str(Path(torch.__file__).parent))
_FIX = (
    "mark the function that cannot be traced with @graph_break or @opaque_op, or use partition='breakable', which "
    "needs no tracing"
)
_SETTINGS = {
    "automatic_dynamic_shapes": False,  # only what is marked becomes a symbol, whatever was traced before
    "recompile_limit": 1 << 20,  # one code may be wrapped any number of times
    "accumulated_recompile_limit": 1 << 20,
}


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    compiler: GraphCompiler,
    *,
    symbols: Collection[tuple[int, int]],
    forbid: frozenset[str] = frozenset(),
) -> TracedProgram:
    """Trace and run ``fn(*args, **kwargs)``.

    Args:
        symbols: (position among the tensors of the arguments, dimension) of each size that differs in other calls.
        forbid: names of ops that may not stand in the graph. A compiler may fuse them into kernels that no capture
            can tell apart, so they are looked for here.

    Raises:
        UnbrokenOpError: an op of ``forbid`` is in the graph.
        UntraceableError: Dynamo cannot trace the callable as one graph; the message names the op and line.
    """
    given = list(tensors((args, kwargs)))
    for index, dim in symbols:
        torch._dynamo.mark_dynamic(given[index], dim)

    def compile_checked(module: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        _refuse_data_dependence(module)
        _refuse_forbidden(module, forbid)
        return compiler(module, example)

    program = TracedProgram(fn, compile_checked)
    try:
        with torch._dynamo.config.patch(_SETTINGS):
            program.first_run(args, kwargs)
    except OstinatoError:
        raise
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, OstinatoError):
                raise cause from error
        raise UntraceableError(
            f"the compiler cannot trace the callable: {_summary(error)}", fix=_FIX, at=_where(error)
        ) from error
    return program


def _refuse_data_dependence(module: torch.fx.GraphModule) -> None:
    """Refuse what Dynamo lets pass: a number or size that only the data tells (``.item()``, boolean masks)."""
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        if value is not None and free_unbacked_symbols(value):
            name = _name_of(node)
            what = "value" if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else "shape"
            raise UntraceableError(
                f"the compiler cannot trace the callable: the {what} of {name}() depends on the data",
                fix=_FIX,
                op=name,
                at=_line_of(node),
            )


def _refuse_forbidden(module: torch.fx.GraphModule, forbid: frozenset[str]) -> None:
    for node in module.graph.nodes:
        target = node.target
        name = op_name(target) if isinstance(target, torch._ops.OpOverload) else f"aten::{_name_of(node)}"
        if node.op in ("call_function", "call_method") and name in forbid:
            raise refuse(name, UNBROKEN_RULE, at=_line_of(node))


def _name_of(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _summary(error: Exception) -> str:
    """The first line, and Dynamo's explanation where it gives one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    explanation = next((line for line in lines if line.startswith("Explanation: ")), "")
    return ": ".join(filter(None, (lines[0], explanation.removeprefix("Explanation: "))))


def _where(error: Exception) -> str:
    """The user's line, from Dynamo's own stack where it has one."""
    for frame in reversed(getattr(error, "real_stack", None) or ()):
        if not frame.filename.startswith(_NOT_THE_USERS):
            return f"{frame.filename}:{frame.lineno}"
    return user_frame()


def _line_of(node: torch.fx.Node) -> str:
    """The user's line that made ``node``."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    return next((f"{file}:{line}" for file, line in reversed(frames) if not file.startswith(_NOT_THE_USERS)), "unknown")
