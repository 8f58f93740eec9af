"""Graphs on a CUDA device, through `torch.cuda.CUDAGraph`.

One pool and one capture stream per process and device: segments and keys never replay side by side, so
they may share intermediate memory. Capture uses the ``thread_local`` error mode, so that another thread's
CUDA call cannot kill it (PITFALLS: global error mode). This is the only file that talks to torch's private
CUDA graph and allocator names, each behind feature detection.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from ostinato.errors import (
    CaptureError,
    ClosedError,
    DeviceUnavailableError,
    NestedCaptureError,
)
from ostinato.runtime.breaks import recording
from ostinato.runtime.capture.backend import BakedCall, CapturedGraph, DeviceUsage, GraphStep, PoolMemory
from ostinato.runtime.capture.call_watch import refusing_calls
from ostinato.runtime.capture.cuda_baked import baked_calls
from ostinato.runtime.capture.cuda_driver import count_nodes, node_names
from ostinato.runtime.capture.cuda_executable import CudaExecutable, require_updates
from ostinato.runtime.capture.executables import ExecutableCounts, Executables, Placement
from ostinato.runtime.capture.externals import External, ExternalLog
from ostinato.runtime.capture.gate import CaptureGate
from ostinato.runtime.capture.generation import Generation
from ostinato.runtime.capture.generators import GeneratorLog, GeneratorStates
from ostinato.runtime.capture.jit_watch import refusing_jit
from ostinato.runtime.capture.made_memory import MadeMemory
from ostinato.runtime.capture.pool_view import PoolView, Snapshot
from ostinato.runtime.capture.refusals import is_unjoined, typed_refusal
from ostinato.runtime.capture.stream_api import cuda_streams
from ostinato.runtime.capture.streams import StreamWatch, not_forked, unjoined
from ostinato.runtime.capture.watch import OpWatch
from ostinato.runtime.nest import tensors
from ostinato.runtime.ops import op_name
from ostinato.runtime.user_frames import user_frame

__all__ = ["CudaBackend", "CudaGraph"]


class _Pool:
    """One torch memory pool and the number of its graphs; torch lets it die with the last of them."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.num_graphs = 0
        self.is_spoiled = False
        self.last_session: object = None

    def leave(self) -> None:
        """One graph of the pool is gone."""
        self.num_graphs -= 1


class _Shared:
    """What all backends of one device share: a stream, a gate, the pool that captures go to, and who has used it."""

    def __init__(self, index: int) -> None:
        self.stream = torch.cuda.Stream(index)
        self.gate = CaptureGate()
        self.pools = [_Pool()]
        self.generations: weakref.WeakSet[Generation] = weakref.WeakSet()

    def enter_pool(self) -> _Pool:
        """The pool for one more graph: the last one, unless it has died or an invalidated capture spoiled it."""
        last = self.pools[-1]
        if last.num_graphs == 0 or last.is_spoiled:
            self.pools = [pool for pool in self.pools if pool.num_graphs > 0]
            self.pools.append(_Pool())
        pool = self.pools[-1]
        pool.num_graphs += 1
        return pool


@functools.cache
def _shared(index: int) -> _Shared:
    return _Shared(index)


class _Opened:
    """A torch graph from begin on: its mark that a recording is open, and its stay in the shared pool.

    Args:
        generators: besides the default one, those that may be drawn from; replays advance them, so they are held.
    """

    def __init__(self, shared: _Shared, generators: list[torch.Generator]) -> None:
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._generators = generators
        for generator in generators:
            self.graph.register_generator_state(generator)
        self.pool = shared.enter_pool()
        # torch gives the pool back when the graph is reset or collected, whichever comes first; so do we.
        self._leave_pool = weakref.finalize(self.graph, self.pool.leave)
        with ExitStack() as mark:  # all of it before the device captures: what fails here leaves nothing open
            mark.enter_context(recording())
            mark.enter_context(refusing_jit())
            mark.enter_context(refusing_calls(shared.stream.device))
            self.graph.capture_begin(pool=self.pool.handle, capture_error_mode="thread_local")
            self.mark = mark.pop_all()

    def finish(self) -> None:
        """End the capture. An empty one is no fault here, so torch's warning about it is kept quiet."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            self.graph.capture_end()

    def reset(self) -> None:
        """Destroy the graph and give its pool reference back."""
        try:
            self.graph.reset()
        finally:
            self._leave_pool()


class CudaGraph:
    """A captured segment, instantiated unless it is empty.

    Args:
        placement: its share of an executable; None: torch made one of its own.
    """

    def __init__(
        self, opened: _Opened, num_nodes: int, placement: Placement | None, on_close: Callable[[CudaGraph], None]
    ) -> None:
        self._opened: _Opened | None = opened
        launch = opened.graph.replay if placement is None else placement.replay
        self._replay = launch if num_nodes else _nothing
        self._on_close = on_close
        self.placement = placement
        self.num_nodes = num_nodes

    def replay(self) -> None:
        """One launch on the current stream."""
        if self._opened is None:
            raise ClosedError("this graph was closed", fix="capture again, or keep the owner open while replaying")
        self._replay()

    def nodes(self) -> list[str]:
        """Kernel names, or kinds of other nodes, in the driver's order."""
        return [] if self._opened is None else node_names(self._opened.graph.raw_cuda_graph())

    def baked(self) -> list[BakedCall]:
        """See `CapturedGraph.baked`."""
        return [] if self._opened is None else baked_calls(self._opened.graph.raw_cuda_graph())

    def steps(self) -> list[GraphStep] | None:
        """See `CapturedGraph.steps`: an executable is launched whole."""
        return None

    def close(self) -> None:
        """Destroy the executable and give its pool reference back."""
        if self._opened is not None:
            opened, self._opened, self._replay = self._opened, None, _nothing
            try:
                self._on_close(self)  # an executable that is shared goes before the graph that it was made from
            finally:
                opened.reset()


def _nothing() -> None:
    """Replay of an empty graph, which torch would warn about."""


def _view_of(pool: tuple[int, int]) -> PoolView | None:
    """What `MadeMemory` asks beside the ops that are seen: the allocator, once Inductor has compiled something.

    Its code allocates past the dispatcher. All else that captures meet goes through it, and need not pay for asking.
    """
    return PoolView(pool, _snapshot) if "torch._inductor.compile_fx" in sys.modules else None


def _snapshot() -> Snapshot:
    """Of all pools: torch's choice of one leaves out what lies behind memory that an expandable segment gave back."""
    return torch.cuda.memory_snapshot(**_snapshot_options())  # type: ignore[no-any-return]


@functools.cache
def _snapshot_options() -> dict[str, bool]:
    """Without the history that the user may have recorded, where torch can leave it out (2.13 can)."""
    can_leave_out = "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters
    return {"include_traces": False} if can_leave_out else {}


class _Watch(OpWatch):
    """Also notes which memory the ops of a session's segments have produced, by address, and on which stream."""

    def __init__(self, generators: GeneratorLog, streams: StreamWatch | None = None) -> None:
        super().__init__("cuda", generators)
        self.made = MadeMemory(_view_of)
        """By the segments of the session."""
        self._streams = streams

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Whether the session's segments have made the memory of ``tensor``."""
        return tensor.device.type == self._device_type and self.made.has(tensor.untyped_storage().data_ptr())

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo compile under this mode; without it, what the user has compiled would run uncompiled."""
        return True

    def execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tensors((args, kwargs)))
        uses_device = any(tensor.device.type == self._device_type for tensor in given)
        uses_device = uses_device or self._is_here(kwargs.get("device"))
        if uses_device and not torch.cuda.is_current_stream_capturing():
            # it would run now, and no replay would run it again
            raise not_forked(op_name(func), "a stream" if self._streams is None else self._streams.current_name())
        result = func(*args, **kwargs)
        memory = {tensor.untyped_storage().data_ptr(): tensor for tensor in given}
        for address, tensor in memory.items():
            if address not in self.made.seen and not self.has_made(tensor):
                self.note_external(tensor, op_name(func))
        fresh = {tensor.untyped_storage().data_ptr() for tensor in tensors(result)} - memory.keys()
        self.made.seen |= fresh
        if uses_device and self._streams is not None:
            self._streams.note_op(func, has_fresh_result=bool(fresh))
        return result

    def _is_here(self, device: Any) -> bool:
        return device is not None and torch.device(device).type == self._device_type


class _BorrowedMemory:
    """Device memory that somebody else owns, as torch takes it (CUDA array interface, version 3)."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.__cuda_array_interface__ = {
            "shape": (storage.nbytes(),),
            "typestr": "|u1",
            "data": (storage.data_ptr(), False),
            "version": 3,
        }


class CudaBackend:
    """`CaptureBackend` on one CUDA device."""

    name = "cuda"
    runs_while_recording = False

    def __init__(self, device: torch.device | str = "cuda", *, shares_executables: bool = False) -> None:
        device = torch.device(device)
        if device.type != "cuda" or not torch.cuda.is_available():
            raise DeviceUnavailableError(
                f"device {device} asked for, but torch finds no CUDA device", fix="use device='cpu' (simulated graphs)"
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise DeviceUnavailableError(
                f"device cuda:{index} asked for", fix=f"use an index below {torch.cuda.device_count()}"
            )
        if shares_executables:
            require_updates()
        self.device = torch.device("cuda", index)
        self._shares_executables = shares_executables
        self._executables = Executables(self._instantiate, is_shared=shares_executables)
        self._shared = _shared(index)
        self.generation = Generation()
        self._streams = StreamWatch(cuda_streams())
        self.generators = GeneratorLog(self.device)
        self._watch = _Watch(self.generators, self._streams)
        self._open: _Opened | None = None
        self._session_thread: int | None = None
        self._has_begun = False
        self._num_graphs = 0
        self._is_closed = False

    @contextmanager
    def phase(self, *, is_brief: bool = False) -> Iterator[None]:
        """See `CaptureBackend.phase`."""
        with self._shared.gate.phase(is_brief=is_brief):
            self.generation.follow(self._shared.generations)
            self._shared.generations.add(self.generation)
            torch.cuda.synchronize(self.device)
            yield

    @contextmanager
    def session(self) -> Iterator[None]:
        """See `CaptureBackend.session`."""
        if self._is_closed:
            raise ClosedError("this capture backend was closed", fix="make a new one")
        if self._session_thread is not None:
            raise NestedCaptureError("a plan is being captured already", fix="capture one callable at a time")
        self._session_thread = threading.get_ident()
        self._watch.made = MadeMemory(_view_of)
        self._watch.externals = ExternalLog()
        self._executables.begin_plan()
        self._has_begun = False
        random = GeneratorStates(self.device, self.generators.entries()) if self._shares_executables else None
        caller = torch.cuda.current_stream(self.device)
        stream = self._shared.stream
        stream.wait_stream(caller)
        try:
            with torch.cuda.stream(stream), self._watch, self._streams.session():
                try:
                    yield
                except Exception as error:
                    self.abort()
                    typed = typed_refusal(error)
                    if typed is error:
                        raise
                    raise typed from error
                finally:
                    self.abort()
        finally:
            self._session_thread = None
            caller.wait_stream(stream)
            # A warm-up run that has moved a generator draws, be it in a kernel that no watch sees.
            if random is not None and not self._has_begun and random.have_moved():
                self._executables.note_drawn()

    def begin(self, *, forbid: frozenset[str] = frozenset()) -> None:
        """See `CaptureBackend.begin`."""
        self._shared.gate.check()
        if self._session_thread is None:
            raise CaptureError("begin() outside session()", fix="open session() around the plan")
        if self._open is not None or torch.cuda.is_current_stream_capturing():
            raise NestedCaptureError("a segment is open already on this thread", fix="end it before beginning another")
        self._open = _Opened(self._shared, self.generators.to_register())
        self._watch.made.enter(self._open.pool)
        self._streams.begin()
        self._has_begun = True
        self._watch.draws = False
        self._watch.forbidden = forbid
        self._watch.is_active = True

    def end(self) -> CapturedGraph:
        """See `CaptureBackend.end`."""
        opened = self._take_open()
        if opened is None:
            raise CaptureError("end() without begin()", fix="begin a segment first")
        refused = self._streams.check_end()
        if refused is not None:
            self._discard(opened)
            raise refused
        try:
            opened.finish()
        except RuntimeError as error:
            self._recover(opened)
            if is_unjoined(error):
                raise unjoined(self._streams.suspects()) from error
            typed = typed_refusal(error)
            if typed is error:
                typed = CaptureError("the device could not end the capture", at=user_frame())
            raise typed from error
        num_nodes = count_nodes(opened.graph.raw_cuda_graph())
        placement = self._executables.place(opened.graph, num_nodes, draws=self._watch.draws)
        if num_nodes:
            if placement is None:
                opened.graph.instantiate()
            self._watch.externals.end_segment()
        self._num_graphs += 1
        return CudaGraph(opened, num_nodes, placement, self._count_closed)

    def abort(self) -> None:
        """See `CaptureBackend.abort`."""
        opened = self._take_open()
        if opened is not None:
            self._discard(opened)

    def has_made(self, tensor: torch.Tensor) -> bool:
        """See `CaptureBackend.has_made`."""
        return self._watch.has_made(tensor)

    def borrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `CaptureBackend.borrow`."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or not self.has_made(tensor):
            return tensor
        raw = torch.as_tensor(_BorrowedMemory(storage), device=self.device)
        return torch.empty(0, dtype=tensor.dtype, device=self.device).set_(
            raw.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )

    def note_external(self, tensor: torch.Tensor, by: str) -> None:
        """See `CaptureBackend.note_external`."""
        if not self.has_made(tensor):
            self._watch.note_external(tensor, by)

    def externals(self) -> list[External]:
        """See `CaptureBackend.externals`."""
        return self._watch.externals.entries()

    def is_capturing(self) -> bool:
        """See `CaptureBackend.is_capturing`."""
        return self._open is not None

    def memory(self) -> PoolMemory:
        """See `CaptureBackend.memory`. Bytes are those of the pool that the process shares, if we have graphs in it."""
        if self._num_graphs == 0:
            return PoolMemory(reserved_bytes=0, num_graphs=0)
        segments = torch.cuda.memory_snapshot()
        pools = {tuple(pool.handle) for pool in self._shared.pools}
        reserved = sum(s["total_size"] for s in segments if tuple(s.get("segment_pool_id", ())) in pools)
        return PoolMemory(reserved_bytes=reserved, num_graphs=self._num_graphs)

    def executables(self) -> ExecutableCounts:
        """See `CaptureBackend.executables`."""
        return self._executables.counts()

    def usage(self) -> DeviceUsage:
        """See `CaptureBackend.usage`."""
        free, total = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        return DeviceUsage(
            allocator_bytes=reserved,
            live_bytes=torch.cuda.memory_allocated(self.device),
            driver_bytes=total - free - reserved,
        )

    def close(self) -> None:
        """See `CaptureBackend.close`. The pool itself goes when the last graph in it is closed."""
        self._is_closed = True

    def _take_open(self) -> _Opened | None:
        opened, self._open = self._open, None
        if opened is not None:
            self._watch.is_active = False
            self._streams.close()
            opened.mark.close()
        return opened

    def _discard(self, opened: _Opened) -> None:
        """Throw a capture away. Its forks are joined before, so that it ends valid and leaves nothing to recover."""
        self._watch.made.forget()
        with torch.cuda.stream(self._shared.stream):
            with suppress(RuntimeError):  # a capture that is invalid takes no join
                for fork in self._streams.forks():
                    self._shared.stream.wait_stream(fork.stream)
            try:
                opened.finish()
            except RuntimeError:  # the device had invalidated the capture: the caller has the first error
                self._recover(opened)
            else:
                opened.reset()

    def _recover(self, opened: _Opened) -> None:
        """After an invalidated capture, make the allocators, the stream and the generators usable again."""
        self._watch.made.forget()
        # torch 2.11 leaves its host allocator recording to this pool, and offers no call to end that; so the
        # pool serves the graphs that it has and takes no more (PITFALLS: pytorch#190348).
        opened.pool.is_spoiled = True
        end_allocate = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if end_allocate is not None:
            with suppress(RuntimeError):  # capture_end may have done it before it failed
                end_allocate(self.device.index, opened.pool.handle)
        with suppress(RuntimeError):  # there may be nothing to reset
            opened.reset()
        # torch leaves the random generators marked as capturing; the end of a valid capture unmarks them.
        healing = _Opened(self._shared, self.generators.to_register())
        healing.mark.close()
        healing.finish()
        healing.reset()

    def _count_closed(self, graph: CudaGraph) -> None:
        self._num_graphs -= 1
        self._executables.close(graph.placement, graph.num_nodes)

    def _instantiate(self, source: torch.cuda.CUDAGraph) -> CudaExecutable:
        return CudaExecutable(source, self.device)
