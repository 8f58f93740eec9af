"""Graphs without a GPU: ATen calls are recorded with their storages and replayed into the same ones.

A wrong program must be as wrong here as on a GPU. So a recording follows no new input address, its
intermediates are recycled by later captures, memory whose owner has died reads as poison, and what CUDA
refuses in a capture is refused with the same typed error. What it cannot see: kernels that bypass the
dispatcher (ctypes), and `.to("cpu")`, which on a CPU is no copy. Streams are those of `torch.cpu`: they order nothing,
but must fork and join as on a GPU. Time on it says nothing about a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ostinato.errors import CaptureError, ClosedError, NestedCaptureError
from ostinato.runtime.breaks import is_recording, recording
from ostinato.runtime.capture.backend import BakedCall, CapturedGraph, DeviceUsage, GraphStep, PoolMemory
from ostinato.runtime.capture.call_watch import refusing_calls
from ostinato.runtime.capture.executables import ExecutableCounts, Executables, Placement
from ostinato.runtime.capture.externals import External
from ostinato.runtime.capture.gate import CaptureGate
from ostinato.runtime.capture.generation import Generation
from ostinato.runtime.capture.generators import GeneratorLog, GeneratorStates
from ostinato.runtime.capture.jit_watch import refusing_jit
from ostinato.runtime.capture.simulated_baked import baked_call, baked_constant
from ostinato.runtime.capture.simulated_memory import Block, ExternalMemory, SimulatedPool, poison
from ostinato.runtime.capture.stream_api import cpu_streams
from ostinato.runtime.capture.streams import StreamWatch, not_forked
from ostinato.runtime.capture.watch import FunctionWatch, OpWatch
from ostinato.runtime.nest import map_tensors, tensors
from ostinato.runtime.ops import UNINITIALISED_OPS, op_name, written_tensors
from ostinato.runtime.ops.out_variants import find_out_variant

__all__ = ["SimulatedBackend", "SimulatedGraph"]

_HOST_CONSTANT_OPS = {"aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy"}


@dataclass(slots=True)
class _Recording:
    """One segment: calls to make again, and the memory they need."""

    calls: list[Callable[[], Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The op of each call."""
    written: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    """What each call leaves, as the recording sees it."""
    baked: list[BakedCall] = field(default_factory=list)
    """Every op, views and constants too, with what it took from the host."""
    externals: dict[int, ExternalMemory] = field(default_factory=dict)
    blocks: set[Block] = field(default_factory=set)


class _SimulatedExecutable:
    """`Instance` of a recording: holds its calls, and takes those of another whose ops are the same in order."""

    def __init__(self, recording: _Recording) -> None:
        self._names = list(recording.names)
        self._calls = recording.calls

    def update(self, source: _Recording) -> bool:
        """See `Instance.update`."""
        if source.names != self._names:
            return False
        self._calls = source.calls
        return True

    def launch(self) -> None:
        """See `Instance.launch`."""
        _launch(self._calls)

    def destroy(self) -> None:
        """See `Instance.destroy`."""
        self._calls = []


class SimulatedGraph:
    """A recorded segment. Later captures reuse the blocks of a closed one; the pool's last gives them back."""

    def __init__(
        self, recording: _Recording, placement: Placement | None, on_close: Callable[[SimulatedGraph], None]
    ) -> None:
        self.placement = placement
        self._calls = recording.calls
        self._externals = list(recording.externals.values())
        self._blocks = recording.blocks  # keeps the memory of the calls alive
        self._on_close: Callable[[SimulatedGraph], None] | None = on_close
        self._names = recording.names
        self._written = recording.written
        self._baked = recording.baked
        self.num_nodes = len(recording.calls)

    def replay(self) -> None:
        """Make the recorded calls again, in order, into the recorded storages."""
        self._begin_replay()
        if self.placement is None:
            _launch(self._calls)
        else:
            self.placement.replay()

    def nodes(self) -> list[str]:
        """The recorded ops, in order."""
        return list(self._names)

    def baked(self) -> list[BakedCall]:
        """See `CapturedGraph.baked`."""
        return list(self._baked)

    def steps(self) -> list[GraphStep]:
        """See `CapturedGraph.steps`."""
        self._begin_replay()
        return [GraphStep(*step) for step in zip(self._names, self._calls, self._written, strict=True)]

    def close(self) -> None:
        """Drop the calls and the memory they pin."""
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            self._calls, self._externals, self._blocks = [], [], set()
            self._names, self._written, self._baked = [], [], []
            on_close(self)
            self.placement = None

    def _begin_replay(self) -> None:
        if self._on_close is None:
            raise ClosedError("this graph was closed", fix="capture again, or keep the owner open while replaying")
        for external in self._externals:
            external.poison_if_dead()


class _Recorder(OpWatch):
    """Executes each op, moves fresh results into the pool, and notes how to do it again."""

    def __init__(
        self,
        pool: SimulatedPool,
        externals: dict[int, ExternalMemory],
        streams: StreamWatch,
        generators: GeneratorLog,
    ) -> None:
        super().__init__("cpu", generators)
        self._streams = streams
        self._pool = pool
        self._known_externals = externals
        self.recording = _Recording()
        self.produced: set[Block] = set()
        """Blocks that ops of this session have written."""

    def execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = op_name(func)
        if not self._streams.is_forked():
            raise not_forked(name, self._streams.current_name())
        result = func(*args, **kwargs)
        if name in _HOST_CONSTANT_OPS:
            # torch.tensor(...) on the host: a GPU bakes the value into kernel parameters, so it never dies.
            for tensor in tensors(result):
                self._external(tensor, is_constant=True)
            self.recording.baked.append(baked_constant(name, result))
            return result
        is_mutable = func._schema.is_mutable
        inputs = {t.untyped_storage()._cdata for t in tensors((args, kwargs))}
        for tensor in tensors((args, kwargs)):
            self.note_use(tensor, name)
        recorded_args, recorded_kwargs = map_tensors((args, kwargs), self._recorded)
        self.recording.baked.append(baked_call(func, args, kwargs))
        fresh: list[tuple[int, torch.Tensor]] = []  # position among the results, where the recording writes it
        position = -1

        def hand_out(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal position
            position += 1
            if tensor.untyped_storage()._cdata in inputs:
                return tensor  # a view of an input, or the input itself: same memory, nothing to write
            program, recorded = self._move_to_pool(tensor)
            fresh.append((position, recorded))
            return program

        handed = map_tensors(result, hand_out)
        self._streams.note_op(func, has_fresh_result=bool(fresh))
        if name in UNINITIALISED_OPS:
            for _, recorded in fresh:
                poison(recorded.untyped_storage())
        elif fresh or is_mutable:
            self.recording.calls.append(_make_call(func, recorded_args, recorded_kwargs, fresh))
            self.recording.names.append(name)
            written = written_tensors(func, recorded_args, recorded_kwargs) if is_mutable else ()
            self.recording.written.append((*(recorded for _, recorded in fresh), *written))
        return handed

    def note_use(self, tensor: torch.Tensor, by: str) -> None:
        """Enter memory that is neither the pool's nor a constant of the program."""
        storage = tensor.untyped_storage()
        known = self._known_externals.get(storage._cdata)
        if self._pool.find(storage) is None and not (known is not None and known.is_constant):
            self.note_external(tensor, by)

    def _move_to_pool(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        source = tensor.untyped_storage()
        block, storage = self._pool.take(source.nbytes())
        self.recording.blocks.add(block)
        self.produced.add(block)
        geometry = (tensor.storage_offset(), tensor.size(), tensor.stride())
        program = torch.empty(0, dtype=tensor.dtype).set_(storage, *geometry)
        program.copy_(tensor)
        return program, block.recorded_view(tensor)

    def _recorded(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` as the recording sees it: same memory, but not the program's tensor."""
        block = self._pool.find(tensor.untyped_storage())
        if block is None:
            return self._external(tensor).alias(tensor)
        self.recording.blocks.add(block)
        return block.recorded_view(tensor)

    def _external(self, tensor: torch.Tensor, *, is_constant: bool = False) -> ExternalMemory:
        cdata = tensor.untyped_storage()._cdata
        external = self._known_externals.get(cdata)
        if external is None:
            external = self._known_externals[cdata] = ExternalMemory(tensor, is_constant=is_constant)
        self.recording.externals[cdata] = external
        return external


class SimulatedBackend:
    """`CaptureBackend` on the CPU."""

    name = "simulated"
    runs_while_recording = True

    def __init__(self, device: torch.device | str = "cpu", *, shares_executables: bool = False) -> None:
        self.device = torch.device(device)
        if self.device.type != "cpu":
            raise CaptureError(f"the simulated backend runs on the CPU, not on {self.device}", fix="use device='cpu'")
        self.generation = Generation()
        self.generators = GeneratorLog(self.device)
        self._shares_executables = shares_executables
        self._executables = Executables(_SimulatedExecutable, is_shared=shares_executables)
        self._has_begun = False
        self._gate = CaptureGate()
        self._pool = SimulatedPool()
        self._externals: dict[int, ExternalMemory] = {}
        self._recorder: _Recorder | None = None
        self._streams = StreamWatch(cpu_streams())
        self._functions = FunctionWatch(self.device.type)
        self._open = ExitStack()
        self._num_graphs = 0
        self._is_closed = False

    def phase(self, *, is_brief: bool = False) -> Any:
        """See `CaptureBackend.phase`."""
        return self._gate.phase(is_brief=is_brief)

    @contextmanager
    def session(self) -> Iterator[None]:
        """See `CaptureBackend.session`."""
        if self._is_closed:
            raise ClosedError("this capture backend was closed", fix="make a new one")
        if self._recorder is not None:
            raise NestedCaptureError("a plan is being captured already", fix="capture one callable at a time")
        self._recorder = _Recorder(self._pool, self._externals, self._streams, self.generators)
        self._executables.begin_plan()
        self._has_begun = False
        random = GeneratorStates(self.device, self.generators.entries()) if self._shares_executables else None
        try:
            with self._recorder, self._functions, self._streams.session():
                try:
                    yield
                finally:
                    self.abort()
        finally:
            self._recorder = None
            self._pool.reclaim(poisoned=True)
            # As on CUDA: a warm-up run that has moved a generator draws.
            if random is not None and not self._has_begun and random.have_moved():
                self._executables.note_drawn()

    def begin(self, *, forbid: frozenset[str] = frozenset()) -> None:
        """See `CaptureBackend.begin`."""
        self._gate.check()
        if self._recorder is None:
            raise CaptureError("begin() outside session()", fix="open session() around the plan")
        if is_recording():  # by another backend too
            raise NestedCaptureError("a segment is open already on this thread", fix="end it before beginning another")
        self._recorder.recording = _Recording()
        self._has_begun = True
        self._recorder.draws = False
        self._recorder.forbidden = self._functions.forbidden = forbid
        with ExitStack() as opened:
            opened.enter_context(recording())
            opened.enter_context(refusing_jit())
            opened.enter_context(refusing_calls(self.device))
            self._streams.begin()
            self._open = opened.pop_all()
        self._recorder.is_active = self._functions.is_active = True

    def end(self) -> CapturedGraph:
        """See `CaptureBackend.end`."""
        recorder = self._recorder
        if recorder is None or not recorder.is_active:
            raise CaptureError("end() without begin()", fix="begin a segment first")
        refused = self._streams.check_end()
        if refused is not None:
            self.abort()
            raise refused
        self._stop(recorder)
        self._num_graphs += 1
        recorded = recorder.recording
        placement = self._executables.place(recorded, len(recorded.calls), draws=recorder.draws)
        graph = SimulatedGraph(recorded, placement, self._count_closed)
        if graph.num_nodes:
            recorder.externals.end_segment()
        return graph

    def abort(self) -> None:
        """See `CaptureBackend.abort`."""
        if self._recorder is not None and self._recorder.is_active:
            self._stop(self._recorder)
            self._recorder.recording = _Recording()

    def has_made(self, tensor: torch.Tensor) -> bool:
        """See `CaptureBackend.has_made`."""
        return self._recorder is not None and self._pool.find(tensor.untyped_storage()) in self._recorder.produced

    def borrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `CaptureBackend.borrow`."""
        block = self._pool.find(tensor.untyped_storage())
        return tensor if block is None or not self.has_made(tensor) else block.recorded_view(tensor)

    def note_external(self, tensor: torch.Tensor, by: str) -> None:
        """See `CaptureBackend.note_external`."""
        if self._recorder is not None:
            self._recorder.note_use(tensor, by)

    def externals(self) -> list[External]:
        """See `CaptureBackend.externals`."""
        return [] if self._recorder is None else self._recorder.externals.entries()

    def is_capturing(self) -> bool:
        """See `CaptureBackend.is_capturing`."""
        return self._recorder is not None and self._recorder.is_active

    def memory(self) -> PoolMemory:
        """See `CaptureBackend.memory`."""
        return PoolMemory(reserved_bytes=self._pool.reserved_bytes, num_graphs=self._num_graphs)

    def executables(self) -> ExecutableCounts:
        """See `CaptureBackend.executables`."""
        return self._executables.counts()

    def usage(self) -> DeviceUsage:
        """See `CaptureBackend.usage`."""
        return DeviceUsage(allocator_bytes=self._pool.reserved_bytes, live_bytes=self._pool.live_bytes, driver_bytes=0)

    def close(self) -> None:
        """See `CaptureBackend.close`."""
        self._is_closed = True
        self._pool.close()
        self._externals.clear()

    def _stop(self, recorder: _Recorder) -> None:
        recorder.is_active = self._functions.is_active = False
        self._streams.close()
        self._open.close()

    def _count_closed(self, graph: SimulatedGraph) -> None:
        self._executables.close(graph.placement, graph.num_nodes)
        self._num_graphs -= 1
        if self._num_graphs == 0:  # as torch gives a pool back with its last graph
            self._pool.trim()


def _launch(calls: list[Callable[[], Any]]) -> None:
    with torch.inference_mode():  # what was captured in inference mode can be written in it alone
        for call in calls:
            call()


def _make_call(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fresh: list[tuple[int, torch.Tensor]]
) -> Callable[[], Any]:
    """A closure that makes the call again and leaves its fresh results where the recording has them."""
    if not fresh:
        return lambda: func(*args, **kwargs)
    out = find_out_variant(func) if len(fresh) == 1 and fresh[0][0] == 0 else None
    if out is not None:
        out_func, out_name = out
        kwargs = {**kwargs, out_name: fresh[0][1]}
        return lambda: out_func(*args, **kwargs)

    def call_and_copy() -> None:
        results = list(tensors(func(*args, **kwargs)))
        for position, target in fresh:
            target.copy_(results[position])

    return call_and_copy
