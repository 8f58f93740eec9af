"""What one run of the callable did: a record for each op, in order. Plain data; `probe` fills it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ostinato.runtime.doctor.frames import Stack
from ostinato.runtime.ops import OpRule

__all__ = ["OpRecord", "Run"]


@dataclass(slots=True)
class OpRecord:
    """One op call, or one Python-level call that stands for the ops inside it."""

    op: str
    rule: OpRule | None
    """What speaks against it by itself; None: nothing."""
    stack: Stack
    host_values: tuple[Any, ...]
    """Arguments that are no tensors, as plain values: what a capture would freeze."""
    input_shapes: tuple[Any, ...]
    output_shapes: tuple[Any, ...] = ()
    seconds: float = 0.0
    in_break: str = ""
    """Name of the declared break that it runs in; such ops run eagerly in a piecewise graph."""
    is_kept: bool = False
    """Whether a tensor that it made outlived the call without being returned."""

    @property
    def key(self) -> Hashable:
        """What the same call of another run has in common with it."""
        return self.op, self.stack.place, self.in_break


@dataclass(slots=True)
class Run:
    """All records of one run."""

    records: list[OpRecord] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    """``name (file:line)`` of each declared break that was met, in order."""
    marked: set[CodeType | None] = field(default_factory=set)
    """Codes of the functions that carry the mark."""
    outputs: Any = None
