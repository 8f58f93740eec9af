"""`CapturedPlan`: what one key replays, a sequence of segments and breaks, and the outputs it leaves.

A full graph is a plan of one segment. The plan owns its graphs, its breaks and its output tensors, so
that a later capture in the same pool cannot recycle what the caller is about to read. A callable with large outputs
does well to write them into a tensor of its own, which all its plans then share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ostinato.errors import ClosedError
from ostinato.runtime.capture import CapturedGraph, External, Generation
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.runners.break_arguments import BreakArgument
from ostinato.runtime.runners.break_record import BreakRecord
from ostinato.runtime.runners.break_step import BreakStep

__all__ = ["CapturedPlan"]


@dataclass(slots=True, kw_only=True)
class CapturedPlan:
    """Segments and breaks in execution order."""

    key: GraphKey
    entries: list[CapturedGraph | BreakStep] = field(default_factory=list)
    outputs: Any = None
    """What the callable returned, at addresses that every replay rewrites; padded sizes."""
    externals: list[External] = field(default_factory=list)
    """Memory that the plan uses and did not make."""
    num_missing_breaks: int = 0
    """Breaks that warm-up met and the capture did not: work that must run eagerly may have been frozen."""
    generation: Generation = field(default_factory=Generation)
    """Of the backend that captured it."""
    is_closed: bool = False
    _calls: list[tuple[Callable[..., None], bool]] = field(default_factory=list)

    @property
    def num_segments(self) -> int:
        """Captured graphs in the plan."""
        return sum(not isinstance(entry, BreakStep) for entry in self.entries)

    @property
    def num_nodes(self) -> int:
        """Kernels, copies and fills of all segments."""
        return sum(entry.num_nodes for entry in self.entries if not isinstance(entry, BreakStep))

    @property
    def break_steps(self) -> list[BreakStep]:
        """The breaks, in order."""
        return [entry for entry in self.entries if isinstance(entry, BreakStep)]

    @property
    def breaks(self) -> list[str]:
        """``name (file:line)`` of each break, in order."""
        return [f"{step.point.name} ({step.point.source})" for step in self.break_steps]

    def frozen_arguments(self) -> BreakRecord:
        """The numbers and strings that every replay gives its breaks."""
        record = BreakRecord()
        for step in self.break_steps:
            step.note_in(record)
        return record

    @property
    def break_arguments(self) -> list[BreakArgument]:
        """What its breaks are given."""
        return [argument for step in self.break_steps for argument in step.arguments]

    def replay(self, num_live: int) -> Any:
        """Run all entries on the current stream; returns `outputs`, valid until the next replay.

        Args:
            num_live: rows of the batch that are real; rows past them are cleared at every hand-over.
        """
        if self.is_closed:
            raise ClosedError(f"the plan of {self.key} was closed", fix="keep the Graphed open while replaying")
        self.generation.advance()
        num_rows = self.key.num_tokens
        for run, is_break in self._calls or self._bind():
            if is_break:
                run(num_live, num_rows)
            else:
                run()
        return self.outputs

    def _bind(self) -> list[tuple[Callable[..., None], bool]]:
        """The entries' calls, looked up once: a step makes some hundred."""
        self._calls = [
            (entry.run, True) if isinstance(entry, BreakStep) else (entry.replay, False) for entry in self.entries
        ]
        return self._calls

    def close(self) -> None:
        """Give graphs, break arguments and outputs back. Idempotent."""
        self.is_closed = True
        entries, self.entries = self.entries, []
        self.outputs, self.externals, self._calls = None, [], []  # first: the last graph of all takes its pool with it
        for entry in entries:
            if not isinstance(entry, BreakStep):
                entry.close()
