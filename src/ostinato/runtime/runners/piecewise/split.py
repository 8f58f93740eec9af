"""Split a traced graph at its breaks: pieces in the original order, N breaks between at most N + 1 graphs.

Consecutive breaks share a piece, and a piece that would only allocate joins the break that follows it: it
launches nothing, so it would be an empty segment. The graph's own order is kept throughout.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.passes.split_module import split_module

from ostinato.runtime.breaks import BreakPoint
from ostinato.runtime.runners.piecewise.lowering import find_lowering

__all__ = ["Piece", "SplitProgram", "split_at_breaks"]

_ALLOCATORS = {
    operator.getitem,
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    "new_empty",
    "new_empty_strided",
    "size",
    "view",
    "dim",
}
"""Targets that launch nothing: allocations, views and sizes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of nodes: a graph to capture, or breaks to run eagerly."""

    name: str
    is_break: bool
    num_ops: int
    breaks: tuple[BreakPoint, ...] = ()


class SplitProgram:
    """Runs the pieces in order. ``pieces`` says what they are."""

    def __init__(self, module: GraphModule, pieces: list[Piece]) -> None:
        self.module = module
        self.pieces = pieces
        self._runner = _PieceRunner(module, {piece.name: piece for piece in pieces})

    def __call__(self, *flat: Any) -> Any:
        return self._runner.run(*flat)

    def replace(self, name: str, compiled: Callable[..., Any]) -> None:
        """Run ``compiled`` in place of graph piece ``name``."""
        self._runner.compiled[name] = compiled


class _PieceRunner(Interpreter):
    """Calls graph pieces as functions, and the ops of break pieces one by one, as breaks."""

    def __init__(self, module: GraphModule, pieces: dict[str, Piece]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._pieces = pieces
        self.compiled: dict[str, Callable[..., Any]] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        piece = self._pieces[target]
        submodule = self.fetch_attr(target)
        if piece.is_break:
            return _BreakPieceRunner(submodule).run(*args)
        return self.compiled.get(target, submodule)(*args, **kwargs)


class _BreakPieceRunner(Interpreter):
    """Runs a break piece; each break goes to this thread's handler without passing torch's dispatcher."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lowering = find_lowering(target)
        return super().call_function(target, args, kwargs) if lowering is None else lowering.run(*args, **kwargs)


def split_at_breaks(module: GraphModule) -> SplitProgram:
    """Split ``module``, which is left as it was."""
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    runs = _runs(nodes)
    ids = {node: index for index, (_, members) in enumerate(runs) for node in members}
    split = split_module(module, None, lambda node: ids[node], keep_original_order=True)  # type: ignore[arg-type]
    pieces = []
    for index, (is_break, members) in enumerate(runs):
        points = tuple(found.point for node in members if (found := find_lowering(node.target)) is not None)
        pieces.append(Piece(f"submod_{index}", is_break, len(members), points))
    return SplitProgram(split, pieces)


def _runs(nodes: list[Node]) -> list[tuple[bool, list[Node]]]:
    """Nodes grouped into alternating graph and break runs, allocation-only graph runs merged away."""
    runs: list[tuple[bool, list[Node]]] = []
    for node in nodes:
        is_break = find_lowering(node.target) is not None
        if not runs or runs[-1][0] != is_break:
            runs.append((is_break, []))
        runs[-1][1].append(node)
    merged: list[tuple[bool, list[Node]]] = []
    for position, (is_break, members) in enumerate(runs):
        is_followed = position + 1 < len(runs)
        if not is_break and is_followed and all(node.target in _ALLOCATORS for node in members):
            is_break = True
        if merged and merged[-1][0] == is_break:
            merged[-1][1].extend(members)
        else:
            merged.append((is_break, list(members)))
    return merged
