"""`TracedProgram`: what Dynamo traced, run without Dynamo.

Dynamo's guards cost milliseconds, and one that fails would compile inside a capture. So they are asked once
a run, before it is warmed up or recorded: `bind` lets Dynamo look up the graph's flat inputs (arguments,
their sizes, parameters, globals) and stops it at the graph; what it gives runs the graph on them, and no
Dynamo. A guard that fails is an error that tells what has changed since the trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from ostinato.errors import UntraceableError
from ostinato.runtime.nest import leaves, map_leaves, tensors

__all__ = ["GraphCompiler", "TracedProgram", "outline"]

GraphCompiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
"""Turns a traced graph and its example inputs into something that runs it on flat inputs."""

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, Enum)


class _Output:
    """Stands for one of the graph's outputs in the callable's result."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Input:
    """Stands for one of the callable's own tensors in its result."""

    def __init__(self, index: int) -> None:
        self.index = index


class _AtGraph(BaseException):
    """Leaves the frame that Dynamo compiled, from where it would enter the graph."""


class TracedProgram:
    """Made by `trace`, whose backend it is.

    Args:
        fn: the callable.
        compiler: gets the traced graph.
    """

    def __init__(self, fn: Callable[..., Any], compiler: GraphCompiler) -> None:
        self._compiler = compiler
        self._run: Callable[..., Any] | None = None
        self._flat: tuple[Any, ...] = ()
        self._outputs: Any = None
        self._template: Any = None
        self._is_binding = False
        self.was_traced_again = False
        self._traced = torch.compile(fn, backend=_backend_of(weakref.ref(self)), fullgraph=True, dynamic=None)

    def first_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Trace, compile and run."""
        result = self._traced(*args, **kwargs)
        if self._run is None:
            raise UntraceableError("the callable holds no tensor work to trace", fix="use partition='breakable'")
        self._template = _template(result, self._outputs, list(tensors((args, kwargs))))
        self._flat, self._outputs = (), None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """The program on these arguments, and on what else it reads now; runs nothing yet.

        Raises:
            UntraceableError: something that the trace took for constant is another now.
        """
        self._is_binding, self.was_traced_again = True, False
        try:
            self._traced(*args, **kwargs)
        except _AtGraph:
            flat, self._flat = self._flat, ()
        except Exception as error:
            if not self.was_traced_again:
                raise
            raise self._changed(args, kwargs) from error
        else:
            raise UntraceableError("Dynamo was switched off after the trace", fix="leave it on until capture() is done")
        finally:
            self._is_binding = False
        given = list(tensors((args, kwargs)))
        return lambda: self._result(flat, given)

    def compile_graph(self, module: torch.fx.GraphModule, example: list[Any]) -> None:
        """Dynamo's backend."""
        if self._run is not None:
            self.was_traced_again = True
            raise UntraceableError("the callable was traced as more than one graph", fix="use partition='breakable'")
        self._run = self._compiler(module, example)

    def enter_graph(self, flat: tuple[Any, ...]) -> Any:
        """Where Dynamo's frame calls the graph."""
        self._flat = flat
        if self._is_binding:
            raise _AtGraph
        assert self._run is not None, "a graph is compiled before it is entered"
        self._outputs = self._run(*flat)
        return self._outputs

    def _result(self, flat: tuple[Any, ...], given: list[torch.Tensor]) -> Any:
        assert self._run is not None, "a program is bound after it was traced"
        outputs = self._run(*flat)

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, _Output):
                return outputs[leaf.index]
            return given[leaf.index] if isinstance(leaf, _Input) else leaf

        return map_leaves(self._template, fill)

    def _changed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UntraceableError:
        """Ask Dynamo once more, for the guard that failed."""
        why = ""
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                self._traced(*args, **kwargs)
        except Exception as error:
            why = next((line for line in str(error).splitlines() if line.strip().startswith("- ")), "")
        guard = why.partition(": ")[2] or why
        return UntraceableError(
            "the callable depends on something that changes from run to run, and a replay would go on with the traced "
            "value",
            fix="pass it as a tensor, reset it with after_warm_up=, or move what reads it into a @graph_break function",
            guard=guard.partition("#")[0].strip() or "unknown",
        )


def outline(result: Any) -> Any:
    """``result`` with (shape, dtype) in place of tensors: equal for two results that differ in their numbers only."""
    return map_leaves(
        result, lambda leaf: (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf)
    )


def _backend_of(program: weakref.ref[TracedProgram]) -> Callable[..., Callable[..., Any]]:
    """The backend that Dynamo's cache keeps for as long as the callable's code lives: it must not keep the program."""

    def backend(module: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        _alive(program).compile_graph(module, example)
        return lambda *flat: _alive(program).enter_graph(flat)

    return backend


def _alive(program: weakref.ref[TracedProgram]) -> TracedProgram:
    found = program()
    assert found is not None, "only the program itself calls what it had traced"
    return found


def _template(result: Any, outputs: Any, given: list[torch.Tensor]) -> Any:
    flat = [leaf for _, leaf in leaves(outputs)]

    def place(leaf: Any) -> Any:
        for index, output in enumerate(flat):
            # A size comes back as a number: one that is among the outputs. The runner compares all sizes' results.
            if (
                output is leaf
                if isinstance(leaf, torch.Tensor)
                else type(leaf) is type(output) is int and leaf == output
            ):
                return _Output(index)
        if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
            raise UntraceableError(
                f"the callable returns a {type(leaf).__name__}, which a trace would freeze",
                fix="return tensors in tuples, lists and mappings, or use partition='breakable'",
            )
        for index, tensor in enumerate(given):
            if tensor is leaf:
                return _Input(index)
        if isinstance(leaf, torch.Tensor):
            raise UntraceableError(
                "the callable returns a tensor that is neither computed in the graph nor an argument",
                fix="return computed tensors, or use partition='breakable'",
            )
        return leaf

    return map_leaves(result, place)
