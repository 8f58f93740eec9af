"""The watch of the CUDA backend, as far as a CPU can show it."""

import math
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from ostinato.errors import UnjoinedStreamError
from ostinato.runtime.capture import cuda
from ostinato.runtime.capture.cuda import CudaBackend, _Watch
from ostinato.runtime.capture.generators import GeneratorLog
from ostinato.runtime.capture.made_memory import MadeMemory
from ostinato.runtime.capture.pool_view import PoolView


@dataclass
class Pool:
    handle: tuple = (0, 1)
    num_graphs: int = 1
    last_session: object = None


class Seen(_Watch):
    def __init__(self):
        super().__init__(GeneratorLog(torch.device("cuda", 0)))
        self.names = []

    def execute(self, func, args, kwargs):
        self.names.append(func._schema.name)
        return super().execute(func, args, kwargs)


@contextmanager
def on_the_cpu(made=None, pool=None):
    """A watch in the middle of a segment, with the CPU for the device."""
    with pytest.MonkeyPatch.context() as patch, Seen() as watch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        watch._device_type = "cpu"
        watch.made = made or MadeMemory(lambda handle: None)
        watch.made.enter(pool or Pool())
        watch.is_active = True
        yield watch
        watch.is_active = False


def test_what_the_user_compiled_runs_compiled_under_it():
    compiled_graphs = []

    def backend(module, example):
        compiled_graphs.append(module)
        return lambda x: (torch.full_like(x, 7.0),)  # so that one can tell compiled from plain

    block = torch.compile(lambda x: x.sin() + 1, backend=backend)
    x = torch.ones(4)
    with torch.no_grad(), Seen() as watch:
        block(x)  # warm-up: compiles
        watch.is_active = True
        y = block(x)
        watch.is_active = False
    assert len(compiled_graphs) == 1, "nothing compiles again while a segment is recorded"
    assert y.tolist() == [7.0] * 4
    assert "aten::sin" not in watch.names


def test_it_notes_what_its_ops_produce_and_not_their_inputs():
    x = torch.ones(4)
    with torch.no_grad(), on_the_cpu() as watch:
        y, same = x + 1, x.view(2, 2)
        assert watch.has_made(y) and watch.has_made(y[1:])
        assert not watch.has_made(same)
    assert [external.tensor() for external in watch.externals.entries()] == [x]


@pytest.mark.parametrize("op", [lambda x: x + 1, lambda x: torch.zeros(2, device="cpu")], ids=["op", "factory"])
def test_device_work_outside_of_the_capturing_stream_is_refused(monkeypatch, op):
    x = torch.ones(4)
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    with torch.no_grad(), Seen() as watch:
        watch._device_type = "cpu"  # a stand-in for the device
        watch.is_active = True
        op(x)
        capturing[0] = False
        with pytest.raises(UnjoinedStreamError, match="not forked") as raised:
            op(x)
        watch.is_active = False
        op(x)
    assert "test_cuda_watch.py" in raised.value.context["at"]


def test_host_work_may_run_under_any_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.no_grad(), Seen() as watch:
        watch.is_active = True
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_buffers_that_compiled_code_allocates_are_no_externals(allocator):
    """As Inductor does: allocated past the dispatcher, written by a kernel that nobody sees, then given to an op."""
    weight, kept = torch.ones(4, 4), allocator.allocate(16)
    made = MadeMemory(lambda handle: PoolView(handle, allocator.snapshot))
    with torch.no_grad(), on_the_cpu(made) as watch:
        for _ in range(8):
            buffer, result = (allocator.allocate(16).view(4, 4) for _ in range(2))
            torch.mm(buffer, weight, out=result)
            allocator.free(buffer)
        torch.mm(kept.view(4, 4), weight, out=result)
        assert watch.has_made(result)
        assert not watch.has_made(kept)
    assert [e.address for e in watch.externals.entries()] == [weight.data_ptr(), kept.data_ptr()]
    assert allocator.num_snapshots == 2, "at the begin, and once for the weight, which is not the allocator's"


@pytest.mark.slow
def test_buffers_of_what_inductor_compiled_are_no_externals(monkeypatch, allocator):
    """Its own code, for the CPU, with its allocations led to the pool."""
    from torch._C._dynamo import guards

    allocated = []

    def allocate(size, stride, dtype):
        allocated.append(allocator.allocate(math.prod(size)))
        return allocated[-1].as_strided(size, stride)

    monkeypatch.setattr(guards, "_empty_strided_cpu", allocate)
    weights = [torch.randn(8, 8) for _ in range(3)]

    def chain(x):
        for weight in weights:
            x = torch.tanh(x @ weight) * 2 + 1
        return x

    compiled, x = torch.compile(chain), torch.randn(4, 8)
    made = MadeMemory(lambda handle: PoolView(handle, allocator.snapshot))
    with torch.no_grad():
        compiled(x)
        assert allocated, "it allocates as it is thought to"
        with on_the_cpu(made) as watch:
            result = compiled(x)
            assert watch.has_made(result)
        torch.testing.assert_close(result, chain(x))
    found = {external.address for external in watch.externals.entries()}
    assert {weight.data_ptr() for weight in weights} <= found
    assert not found & {tensor.data_ptr() for tensor in allocated}


def test_memory_of_another_kind_of_device_is_never_asked_about(allocator):
    made = MadeMemory(lambda handle: PoolView(handle, allocator.snapshot))
    with torch.no_grad(), on_the_cpu(made) as watch:
        watch._device_type = "cuda"
        x = torch.ones(4) + torch.ones(4)
        assert not watch.has_made(x)
    assert allocator.num_snapshots == 1


def test_the_allocator_is_asked_only_once_inductor_has_compiled(monkeypatch, allocator):
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda mempool_id=None: allocator.snapshot())
    cuda._snapshot_options.cache_clear()
    monkeypatch.delitem(sys.modules, "torch._inductor.compile_fx", raising=False)
    assert cuda._view_of(allocator.ours) is None
    assert allocator.num_snapshots == 0
    monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", SimpleNamespace())
    view = cuda._view_of(allocator.ours)
    assert allocator.num_snapshots == 1
    assert view.is_new(allocator.allocate(8).data_ptr())
    cuda._snapshot_options.cache_clear()


@pytest.mark.parametrize(
    ("snapshot", "options"),
    [
        (lambda: None, {}),
        (lambda mempool_id=None: None, {}),
        (lambda mempool_id=None, include_traces=True: None, {"include_traces": False}),
    ],
    ids=["old", "2.11", "2.13"],
)
def test_recorded_history_is_left_out_where_torch_can(monkeypatch, snapshot, options):
    cuda._snapshot_options.cache_clear()
    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    assert cuda._snapshot_options() == options
    cuda._snapshot_options.cache_clear()


def test_the_local_torch_takes_the_options_of_a_snapshot(monkeypatch):
    """No device here, so only the call's form is shown: all pools, and no history."""
    asked = []
    monkeypatch.setattr(
        torch._C, "_cuda_memorySnapshot", lambda what: asked.append(what) or {"segments": []}, raising=False
    )
    cuda._snapshot_options.cache_clear()
    assert cuda._snapshot() == []
    assert asked in ([None], [(0, 0, False)])
    cuda._snapshot_options.cache_clear()


class Opened:
    """What the backend opens when a segment begins, without a device."""

    def __init__(self, shared, generators):
        self.pool, self.mark = shared.pool, ExitStack()


@pytest.fixture
def backend(monkeypatch, allocator):
    """A CUDA backend inside a session, cut off from torch where the device is asked."""
    monkeypatch.setattr(cuda, "_Opened", Opened)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    backend = object.__new__(CudaBackend)
    backend._shared = SimpleNamespace(gate=SimpleNamespace(check=lambda: None), pool=Pool())
    backend._session_thread, backend._open = 1, None
    backend.generators = SimpleNamespace(to_register=list)
    backend._streams = SimpleNamespace(begin=lambda: None, close=lambda: None)
    backend._watch = Seen()
    backend._watch._device_type = "cpu"
    backend._watch.made = MadeMemory(lambda handle: PoolView(handle, allocator.snapshot))
    return backend


def test_a_break_is_lent_what_compiled_code_made_and_holds_the_rest(backend, allocator):
    kept = allocator.allocate(8)
    backend.begin()
    buffer = allocator.allocate(8)
    backend._take_open()  # as `end` does
    eager = allocator.allocate(8, allocator.others)
    assert backend.has_made(buffer) and backend.has_made(buffer[2:])
    for given in (kept, eager):
        assert not backend.has_made(given)
        assert backend.borrow(given) is given
    for given in (buffer, kept, eager):
        backend.note_external(given, "break attend")
    assert [e.address for e in backend.externals()] == [kept.data_ptr(), eager.data_ptr()]
    assert all(e.is_break for e in backend.externals())


def test_what_an_aborted_segment_made_is_held(backend, allocator, monkeypatch):
    backend.begin()
    buffer = allocator.allocate(8)
    assert backend.has_made(buffer)
    backend._shared.stream = None
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: ExitStack())
    backend._streams.forks = list
    monkeypatch.setattr(Opened, "finish", lambda self: None, raising=False)
    monkeypatch.setattr(Opened, "reset", lambda self: None, raising=False)
    backend.abort()
    assert not backend.has_made(buffer)
    backend.begin()
    assert not backend.has_made(buffer)
    assert backend.has_made(allocator.allocate(8))
