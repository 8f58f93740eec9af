"""Calls that the device does not permit in a capture: allocation outside of the pool, and waits, each by its error."""

import ctypes

import pytest
import torch

from ostinato.errors import CaptureError, HostSyncError
from ostinato.runtime.memory import driver

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

UNSUPPORTED = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED


def segment(backend, fn):
    with backend.phase(), backend.session():
        backend.begin()
        out = fn()
        return backend.end(), out


def is_as_new(backend):
    x = torch.ones(4, device="cuda")
    graph, y = segment(backend, lambda: x + torch.zeros_like(x))
    graph.replay()
    assert y.tolist() == [1.0] * 4
    assert torch.rand(4, device="cuda").sum().item() > 0  # the generator is out of the capture
    graph.close()


def allocate():
    """As a library does that has no allocator of its own. Gives the driver's status."""
    address = ctypes.c_void_p()
    status = driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
    if status == 0:
        driver().cuMemFree_v2(address)
    return status


def test_an_allocation_by_the_driver_is_no_host_sync(backend):
    x = torch.ones(4, device="cuda")

    def program():
        x + 1
        if (status := allocate()) != 0:
            raise RuntimeError(f"out of luck: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ({status})")

    for _ in range(2):
        with pytest.raises(CaptureError, match="cudaMalloc") as caught:
            segment(backend, program)
        assert type(caught.value) is CaptureError
        assert f"({UNSUPPORTED})" in caught.value.message
        assert "test_refused_calls_cuda.py" in caught.value.context["at"]
        is_as_new(backend)


@pytest.mark.parametrize("goes_on", [True, False], ids=["an op after it", "the end after it"])
def test_an_error_that_was_kept_is_told_by_what_it_has_done(backend, goes_on):
    x = torch.ones(4, device="cuda")

    def program():
        x + 1
        assert allocate() == UNSUPPORTED
        return x + 2 if goes_on else None

    with pytest.raises(CaptureError, match="had invalidated the capture") as caught:
        segment(backend, program)
    assert type(caught.value) is CaptureError
    assert "cudaMalloc" in caught.value.fix
    assert "test_refused_calls_cuda.py" in caught.value.context["at"]
    is_as_new(backend)


@pytest.mark.parametrize("what", ["device", "stream", "event", "event query"])
def test_waits_of_the_host_are_host_syncs(backend, what):
    x = torch.ones(4, device="cuda")

    def program():
        x + 1
        if what == "device":
            torch.cuda.synchronize()
        elif what == "stream":
            torch.cuda.current_stream().synchronize()
        else:
            event = torch.cuda.current_stream().record_event()
            event.synchronize() if what == "event" else event.query()

    with pytest.raises(HostSyncError) as caught:
        segment(backend, program)
    assert "test_refused_calls_cuda.py" in caught.value.context["at"]
    is_as_new(backend)


def test_another_pool_is_refused_before_anything_is_allocated(backend):
    pool, x = torch.cuda.MemPool(), torch.ones(4, device="cuda")
    kept, _ = segment(backend, lambda: x * 2)
    pools = len(backend._shared.pools)

    def program():
        with torch.cuda.use_mem_pool(pool):
            return x + 1

    with pytest.raises(CaptureError, match="outside of the graph's pool") as caught:
        segment(backend, program)
    assert caught.value.__cause__ is None
    assert "test_refused_calls_cuda.py" in caught.value.context["at"]
    assert len(backend._shared.pools) == pools and not backend._shared.pools[-1].is_spoiled
    with backend.session():  # where a break would be
        assert program().tolist() == [2.0] * 4
    is_as_new(backend)
    kept.close()
