"""Waits for the device and other memory pools in a segment, as far as a CPU can show it; see tests/gpu."""

import threading

import pytest
import torch
from torch.cpu import synchronize as wait_taken_before
from torch.cuda import use_mem_pool as taken_before

from ostinato.errors import CaptureError, HostSyncError
from ostinato.runtime.breaks import recording
from ostinato.runtime.capture.call_watch import refusing_calls

CUDA, CPU = torch.device("cuda", 1), torch.device("cpu")


@pytest.mark.parametrize("enter", [taken_before, lambda pool: torch.cuda.use_mem_pool(pool)], ids=["taken", "named"])
def test_another_pool_is_refused_by_the_users_line(enter):
    code = torch.cuda.use_mem_pool.__code__
    with recording(), refusing_calls(CUDA), pytest.raises(CaptureError, match="outside of the graph's pool") as caught:
        enter(None)
    assert "test_call_watch.py" in caught.value.context["at"]
    assert "@graph_break" in caught.value.fix
    assert torch.cuda.use_mem_pool.__code__ is code


def test_a_wait_is_refused_by_the_users_line():
    with recording(), refusing_calls(CPU), pytest.raises(HostSyncError, match=r"torch\.cpu\.synchronize") as caught:
        wait_taken_before()
    assert "test_call_watch.py" in caught.value.context["at"]
    wait_taken_before()


@pytest.mark.parametrize(
    ("device", "is_refused"),
    [(None, True), (1, True), ("cuda", True), ("cuda:1", True), (CUDA, True), (0, False), ("cuda:0", False)],
)
def test_a_wait_for_another_device_is_none_of_ours(monkeypatch, device, is_refused):
    waited = []

    def synchronize(device=None):
        waited.append(device)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with recording(), refusing_calls(CUDA):
        if is_refused:
            with pytest.raises(HostSyncError):
                torch.cuda.synchronize(device)
        else:
            torch.cuda.synchronize(device=device)
    assert waited == ([] if is_refused else [device])


def test_only_the_thread_that_records_is_refused():
    made = []

    def other():
        made.append(taken_before(None))
        wait_taken_before()

    with recording(), refusing_calls(CUDA), refusing_calls(CPU):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert hasattr(made[0], "__enter__")


def test_a_torch_without_pools_is_left_alone(monkeypatch):
    monkeypatch.delattr(torch.cuda, "use_mem_pool")
    with recording(), refusing_calls(CUDA):
        assert not hasattr(torch.cuda, "use_mem_pool")
