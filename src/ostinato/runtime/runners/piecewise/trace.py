"""Trace a callable once with Dynamo and call the result without Dynamo.

Dynamo's own guards cost milliseconds and would recompile inside a capture. So the traced graph's flat
inputs are bound to where they come from (an argument, a size of an argument, or a fixed object such as a
parameter), and later calls fill them in. Size 1 is traced by itself, since compilers treat it specially.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ostinato.errors import OstinatoError, UntraceableError
from ostinato.runtime.capture.watch import user_frame
from ostinato.runtime.nest import leaves, map_leaves, tensors

__all__ = ["TracedProgram", "trace"]

_OURS = str(Path("ostinato", "runtime"))

Compiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
"""Turns a traced graph and its example inputs into something that runs it on flat inputs."""


class _Output:
    """Stands for one of the graph's outputs in the callable's result."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Input:
    """Stands for one of the callable's own tensors in its result."""

    def __init__(self, index: int) -> None:
        self.index = index


class TracedProgram:
    """A traced callable. Call it with the same structure of arguments as it was traced with."""

    def __init__(
        self, run: Callable[..., Any], bindings: list[Callable[[list[torch.Tensor]], Any]], template: Any
    ) -> None:
        self.run = run
        self._bindings = bindings
        self._template = template

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tensors((args, kwargs)))
        outputs = self.run(*(bind(given) for bind in self._bindings))

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, _Output):
                return outputs[leaf.index]
            return given[leaf.index] if isinstance(leaf, _Input) else leaf

        return map_leaves(self._template, fill)


def trace(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], compiler: Compiler, *, num_rows: int
) -> TracedProgram:
    """Trace ``fn(*args, **kwargs)``; first dimensions of ``num_rows`` become symbolic, unless they are 1.

    Raises:
        UntraceableError: Dynamo cannot trace the callable as one graph; the message names the op and line.
    """
    given = list(tensors((args, kwargs)))
    seen: dict[str, Any] = {}

    def backend(module: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        if "module" in seen:
            raise UntraceableError("the callable was traced as more than one graph", fix="use partition='breakable'")
        seen["module"] = module
        compiled = compiler(module, example)

        def run(*flat: Any) -> Any:
            seen["flat"], seen["outputs"] = flat, compiled(*flat)
            return seen["outputs"]

        seen["run"] = compiled
        return run

    for tensor in given:
        if num_rows > 1 and tensor.dim() > 0 and tensor.shape[0] == num_rows:
            torch._dynamo.mark_dynamic(tensor, 0)
    torch._dynamo.reset()
    try:
        result = torch.compile(fn, backend=backend, fullgraph=True, dynamic=None)(*args, **kwargs)
    except OstinatoError:
        raise
    except Exception as error:
        raise UntraceableError(
            f"the compiler cannot trace the callable: {_first_line(error)}",
            fix="mark the function that cannot be traced with @graph_break or @opaque_op, or use "
            "partition='breakable', which needs no tracing",
            at=_where(error),
        ) from error
    finally:
        torch._dynamo.reset()
    if "flat" not in seen:
        raise UntraceableError("the callable holds no tensor work to trace", fix="use partition='breakable'")
    return TracedProgram(
        seen["run"], _bind(seen["module"], seen["flat"], given), _template(result, seen["outputs"], given)
    )


def _bind(
    module: torch.fx.GraphModule, flat: tuple[Any, ...], given: list[torch.Tensor]
) -> list[Callable[[list[torch.Tensor]], Any]]:
    """Where each flat input comes from on a later call."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    symbols: dict[str, tuple[int, int]] = {}
    positions: dict[int, int] = {}
    for place, (node, value) in enumerate(zip(nodes, flat, strict=True)):
        index = next((i for i, t in enumerate(given) if t is value), None)
        if index is None:
            continue
        positions[place] = index
        fake = node.meta.get("example_value")
        for dim, size in enumerate(() if fake is None else fake.shape):
            symbols.setdefault(str(size), (index, dim))
    bindings: list[Callable[[list[torch.Tensor]], Any]] = []
    for place, (node, value) in enumerate(zip(nodes, flat, strict=True)):
        if place in positions:
            bindings.append(_argument(positions[place]))
        elif isinstance(value, int) and str(node.meta.get("example_value")) in symbols:
            bindings.append(_size(*symbols[str(node.meta.get("example_value"))]))
        else:
            bindings.append(_constant(value))
    return bindings


def _argument(index: int) -> Callable[[list[torch.Tensor]], Any]:
    return lambda given: given[index]


def _size(index: int, dim: int) -> Callable[[list[torch.Tensor]], Any]:
    return lambda given: given[index].shape[dim]


def _constant(value: Any) -> Callable[[list[torch.Tensor]], Any]:
    return lambda given: value


def _template(result: Any, outputs: Any, given: list[torch.Tensor]) -> Any:
    flat = [leaf for _, leaf in leaves(outputs)]

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for index, output in enumerate(flat):
            if output is leaf:
                return _Output(index)
        for index, tensor in enumerate(given):
            if tensor is leaf:
                return _Input(index)
        raise UntraceableError(
            "the callable returns a tensor that is neither computed in the graph nor an argument",
            fix="return computed tensors, or use partition='breakable'",
        )

    return map_leaves(result, place)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _where(error: Exception) -> str:
    """The user's line, from Dynamo's own stack where it has one."""
    for frame in reversed(getattr(error, "real_stack", None) or ()):
        if _OURS not in frame.filename:
            return f"{frame.filename}:{frame.lineno}"
    return user_frame()
