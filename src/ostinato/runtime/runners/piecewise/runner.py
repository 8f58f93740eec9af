"""`CompiledRunner`: graphs of a traced callable, split before a compiler (fx) or after it (inductor).

Once the callable is traced its breaks are ops, and wherever one runs during a piecewise capture the segment
ends. So recording is left to the plain runners, and no private hook for graph partitions is needed. With
`fx` the traced graph is split first and its pieces are compiled apart, or not at all; with `inductor` the
whole graph is compiled, fused across breaks, and broken where the compiled code calls a break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from ostinato.errors import CaptureError, UnsupportedPartitionError
from ostinato.runtime.breaks import BreakPoint, handling_breaks
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.keys import Compiler, GraphKey, Partition, RuntimeMode
from ostinato.runtime.runners.piecewise.lowering import BreakLowering
from ostinato.runtime.runners.piecewise.split import Piece, SplitProgram, split_at_breaks
from ostinato.runtime.runners.piecewise.trace import TracedProgram, trace
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.runner import BoundCall, Call, Runner

__all__ = ["CompiledRunner"]


class CompiledRunner:
    """A `Runner` that traces the callable and lets another runner record it.

    The first warm-up of each key runs the callable as it is, to learn what its breaks take and give; the
    second traces it (once for all sizes, and once for size 1) and runs the traced program.

    Args:
        inner: records the traced program.
        partition: FX splits at breaks; INDUCTOR leaves the traced graph whole.
        compiler: with FX, of each piece.
        max_tokens: larger keys are recorded uncompiled. None: no limit.

    Raises:
        UnsupportedPartitionError: Inductor's kernels for this device cannot be recorded.
    """

    def __init__(
        self,
        backend: CaptureBackend,
        inner: Runner,
        *,
        partition: Partition,
        compiler: Compiler = Compiler.NONE,
        max_tokens: int | None = None,
    ) -> None:
        if backend.name == "simulated" and (partition is Partition.INDUCTOR or compiler is Compiler.INDUCTOR):
            raise UnsupportedPartitionError(
                "Inductor's CPU kernels bypass the dispatcher, so simulated graphs cannot record them",
                fix="use partition='fx' with compile='none', or partition='breakable'",
            )
        self.runtime_mode: RuntimeMode = inner.runtime_mode
        self._backend = backend
        self._inner = inner
        self._partition = partition
        self._compiler = compiler
        self._max_tokens = max_tokens
        self._lowerings: dict[BreakPoint, BreakLowering] = {}
        self._seen: set[GraphKey] = set()
        self._programs: dict[bool, TracedProgram] = {}  # whether the size is 1 -> program
        self.pieces: list[Piece] = []
        """Of the last traced graph, with FX."""

    def warm_up(self, key: GraphKey, call: Call) -> Any:
        """See `Runner.warm_up`."""
        if self._is_plain(key):
            return self._inner.warm_up(key, call)
        if key not in self._seen:
            self._seen.add(key)
            observer = _LoweringObserver(self._lowerings)
            with self._backend.session(), handling_breaks(observer, is_planning=True):
                return call()
        return self._inner.warm_up(key, self._traced(key, call))

    def capture(self, key: GraphKey, call: Call) -> CapturedPlan:
        """See `Runner.capture`."""
        if self._is_plain(key):
            return self._inner.capture(key, call)
        if (key.num_tokens == 1) not in self._programs:
            raise CaptureError("a key is captured before it was traced", fix="warm up twice before capture")
        return self._inner.capture(key, self._traced(key, call))

    def _is_plain(self, key: GraphKey) -> bool:
        return self._max_tokens is not None and key.num_tokens > self._max_tokens

    def _traced(self, key: GraphKey, call: Call) -> Call:
        assert isinstance(call, BoundCall), "the facade binds calls"
        is_single = key.num_tokens == 1
        if is_single not in self._programs:
            self._programs[is_single] = self._trace(call, key.num_tokens)
        program = self._programs[is_single]
        return lambda: program(call.args, call.kwargs)

    def _trace(self, call: BoundCall, num_rows: int) -> TracedProgram:
        lowerings = list(self._lowerings.values())
        for lowering in lowerings:
            lowering.point.lowering.call = lowering.lower()
        try:
            return trace(call.fn, call.args, call.kwargs, self._compile, num_rows=num_rows)
        finally:
            for lowering in lowerings:
                lowering.point.lowering.call = None

    def _compile(self, module: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        if self._partition is Partition.INDUCTOR:
            return _inductor(module, example)
        program = split_at_breaks(module)
        self.pieces = program.pieces
        if self._compiler is Compiler.INDUCTOR:
            _compile_pieces(program)
        return program


class _LoweringObserver:
    """Break handler of the first warm-up: runs breaks inline and shows them to their lowerings."""

    def __init__(self, lowerings: dict[BreakPoint, BreakLowering]) -> None:
        self._lowerings = lowerings

    def run_break(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with handling_breaks(None):
            result = point.fn(*args, **kwargs)
        self._lowerings.setdefault(point, BreakLowering(point)).observe(args, kwargs, result)
        return result


def _inductor(module: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
    """Inductor's code for ``module``, without graphs of its own: ours are captured around it."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch({"triton.cudagraphs": False}):
        return cast(Callable[..., Any], compile_fx(module, example))


def _compile_pieces(program: SplitProgram) -> None:
    for piece in program.pieces:
        if not piece.is_break:
            submodule = getattr(program.module, piece.name)
            example = [node.meta["example_value"] for node in submodule.graph.nodes if node.op == "placeholder"]
            program.replace(piece.name, _inductor(submodule, example))
