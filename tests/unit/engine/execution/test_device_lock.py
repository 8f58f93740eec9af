"""While the lock is held, its device is the thread's current one: as stand-ins of torch's tell."""

from __future__ import annotations

import threading

import pytest
import torch

from ostinato.engine.execution import DeviceLock


class Devices(threading.local):
    """What `torch.cuda` knows of this thread."""

    current = 0
    num_set = 0

    def set(self, index: int) -> None:
        self.current = index
        self.num_set += 1


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    found = Devices()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: found.current)
    monkeypatch.setattr(torch.cuda, "set_device", found.set)
    return found


def test_each_thread_is_on_the_device_while_it_holds_the_lock(devices: Devices) -> None:
    lock = DeviceLock(torch.device("cuda", 1))
    seen: list[list[int]] = []

    def work(first: int) -> None:
        devices.current = first
        told = []
        for _ in range(2):
            with lock:
                told.append(devices.current)
                with lock:
                    told.append(devices.current)
                told.append(devices.current)
            told.append(devices.current)
        seen.append([*told, devices.num_set])

    for first in (0, 1, 2):
        thread = threading.Thread(target=work, args=(first,))
        thread.start()
        thread.join()
    assert seen == [[1, 1, 1, 0] * 2 + [4], [1, 1, 1, 1] * 2 + [0], [1, 1, 1, 2] * 2 + [4]]


def test_an_exception_leaves_the_device_as_it_was_and_the_lock_free(devices: Devices) -> None:
    lock = DeviceLock(torch.device("cuda", 1))
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 // 0
    assert devices.current == 0
    thread = threading.Thread(target=lock.__enter__)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_device_that_tells_nothing_does_not_keep_an_engine_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "current_device", fail)
    with DeviceLock(torch.device("cuda", 0)):
        pass


def test_on_a_cpu_no_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", None)
    with DeviceLock(torch.device("cpu")):
        pass
