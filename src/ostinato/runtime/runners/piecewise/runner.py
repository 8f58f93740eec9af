"""`CompiledRunner`: graphs of a traced callable, split before a compiler (fx) or after it (inductor).

Once the callable is traced its breaks are ops, and wherever one runs during a piecewise capture the segment
ends. So recording is left to the plain runners, and no private hook for graph partitions is needed. With
`fx` the traced graph is split first and its pieces are compiled apart, or not at all; with `inductor` the
whole graph is compiled, fused across breaks, and broken where the compiled code calls a break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from ostinato.errors import CaptureError, UntraceableError
from ostinato.runtime.breaks import BreakPoint, handling_breaks
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.keys import Compiler, GraphKey, Partition, RuntimeMode
from ostinato.runtime.nest import tensors
from ostinato.runtime.runners.piecewise.lowering import BreakLowering
from ostinato.runtime.runners.piecewise.program import TracedProgram, outline
from ostinato.runtime.runners.piecewise.split import Piece, SplitProgram, split_at_breaks
from ostinato.runtime.runners.piecewise.support import require_support
from ostinato.runtime.runners.piecewise.trace import trace
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.runner import BoundCall, Call, Runner

__all__ = ["CompiledRunner"]


_Kind = tuple[str, int | None]
"""`GraphKey.kind` and the query length. For keys of different kinds the callable may take different Python branches (an
engine does, for decodes and mixed batches), and a trace holds one of these."""
_Group = tuple[_Kind, tuple[bool, ...]]
"""The keys of one trace: their kind, and which of the sizes that differ in it are 1."""


class CompiledRunner:
    """A `Runner` that traces the callable and lets another runner record it.

    The first warm-up of each key runs the callable as it is, to learn what its breaks take and give and which
    sizes differ from key to key; the second traces it (once for keys of one kind, and once more where such a size
    is 1) and runs the traced program. What it returns must be what the callable returned, but for the numbers in
    tensors.

    Args:
        inner: records the traced program.
        partition: FX splits at breaks; INDUCTOR leaves the traced graph whole.
        compiler: with FX, of each piece.
        max_tokens: larger keys are recorded uncompiled. None: no limit.
        before_trace: called before each traced warm-up run, to undo what earlier runs changed in the callable's
            own state: a trace must see what a capture should.
        forbid: see `trace`.

    Raises:
        UnsupportedPartitionError: see `require_support`.
    """

    def __init__(
        self,
        backend: CaptureBackend,
        inner: Runner,
        *,
        partition: Partition,
        compiler: Compiler = Compiler.NONE,
        max_tokens: int | None = None,
        before_trace: Callable[[], None] | None = None,
        forbid: frozenset[str] = frozenset(),
    ) -> None:
        require_support(partition, compiler, backend=backend.name)
        self.runtime_mode: RuntimeMode = inner.runtime_mode
        self._backend = backend
        self._inner = inner
        self._partition = partition
        self._compiler = compiler
        self._max_tokens = max_tokens
        self._before_trace = before_trace
        self._forbid = forbid
        self._lowerings: dict[BreakPoint, BreakLowering] = {}
        self._outlines: dict[GraphKey, Any] = {}  # of what the callable itself returned
        self._shapes: dict[GraphKey, list[tuple[int, ...]]] = {}  # of the tensors it took
        self._programs: dict[_Group, TracedProgram] = {}
        self.pieces: list[Piece] = []
        """Of the last traced graph, with FX."""

    def warm_up(self, key: GraphKey, call: Call) -> Any:
        """See `Runner.warm_up`."""
        if self._is_plain(key):
            return self._inner.warm_up(key, call)
        bound = _bound(call)
        if key not in self._outlines:
            observer = _LoweringObserver(self._lowerings)
            with self._backend.session(), handling_breaks(observer, is_planning=True):
                result = call()
            self._outlines[key] = outline(result)
            self._shapes[key] = _shapes(bound)
            return result
        if self._before_trace is not None:
            self._before_trace()
        group = self._group(key, bound)
        if group not in self._programs:
            self._programs[group] = self._trace(bound, group)
            if self._before_trace is not None:
                self._before_trace()
        result = self._inner.warm_up(key, self._bind(self._programs[group], bound))
        if outline(result) != self._outlines[key]:
            raise UntraceableError(
                f"the traced program returns something else than the callable for {key}",
                fix="return tensors and numbers that follow the arguments, or use partition='breakable'",
                expected=self._outlines[key],
                got=outline(result),
            )
        return result

    def capture(self, key: GraphKey, call: Call) -> CapturedPlan:
        """See `Runner.capture`."""
        if self._is_plain(key):
            return self._inner.capture(key, call)
        bound = _bound(call)
        program = self._programs.get(self._group(key, bound))
        if program is None:
            raise CaptureError("a key is captured before it was traced", fix="warm up twice before capture")
        return self._inner.capture(key, self._bind(program, bound))

    def _is_plain(self, key: GraphKey) -> bool:
        return self._max_tokens is not None and key.num_tokens > self._max_tokens

    def _group(self, key: GraphKey, call: BoundCall) -> _Group:
        kind, shapes = _kind(key), _shapes(call)
        return kind, tuple(shapes[index][dim] == 1 for index, dim in self._differing(self._shapes_of(kind)))

    def _shapes_of(self, kind: _Kind) -> list[list[tuple[int, ...]]]:
        return [shapes for key, shapes in self._shapes.items() if _kind(key) == kind]

    def _differing(self, seen: Sequence[list[tuple[int, ...]]]) -> list[tuple[int, int]]:
        first = seen[0] if seen else []
        return [
            (index, dim)
            for index, shape in enumerate(first)
            for dim in range(len(shape))
            if len({other[index][dim] for other in seen}) > 1
        ]

    def _trace(self, call: BoundCall, group: _Group) -> TracedProgram:
        kind, ones = group
        seen = self._shapes_of(kind)
        sizes = self._differing(seen)
        alike = [s for s in seen if tuple(s[index][dim] == 1 for index, dim in sizes) == ones]
        with self._stand_ins():
            symbols = self._differing(alike)
            return trace(call.fn, call.args, call.kwargs, self._compile, symbols=symbols, forbid=self._forbid)

    def _bind(self, program: TracedProgram, call: BoundCall) -> Call:
        with self._stand_ins():  # Dynamo's guards look at them
            return program.bind(call.args, call.kwargs)

    @contextmanager
    def _stand_ins(self) -> Iterator[None]:
        """Breaks are ops for as long as Dynamo looks."""
        for point, lowering in self._lowerings.items():
            point.lowering.call = lowering.stand_in()
        try:
            yield
        finally:
            for point in self._lowerings:
                point.lowering.call = None

    def _compile(self, module: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        if self._partition is Partition.INDUCTOR:
            return _inductor(module, example)
        program = split_at_breaks(module)
        self.pieces = program.pieces
        if self._compiler is Compiler.INDUCTOR:
            _compile_pieces(program)
        return program


def _bound(call: Call) -> BoundCall:
    assert isinstance(call, BoundCall), "the facade binds calls"
    return call


def _kind(key: GraphKey) -> _Kind:
    return key.kind, key.uniform_query_len


def _shapes(call: BoundCall) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors((call.args, call.kwargs))]


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
    """Inductor's code for ``module``, without graphs of its own: ours are captured around it.

    Random numbers are those of eager, as in every other way to run a step; Inductor's own could not be compared.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch({"triton.cudagraphs": False, "fallback_random": True}):
        return cast(Callable[..., Any], compile_fx(module, example))


def _compile_pieces(program: SplitProgram) -> None:
    for piece in program.pieces:
        if not piece.is_break:
            submodule = getattr(program.module, piece.name)
            example = [node.meta["example_value"] for node in submodule.graph.nodes if node.op == "placeholder"]
            program.replace(piece.name, _inductor(submodule, example))
