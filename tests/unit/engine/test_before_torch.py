"""What a start waits for begins in threads, where there is something to begin; what fails there fails nobody."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ostinato.engine import before_torch as under_test
from ostinato.engine.before_torch import begin_triton_key, finish_head_start, head_start

libc = ctypes.CDLL(None)
"""Converts arguments as the driver's library does."""


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What threads raise. pytest warns of it too, but only once the test is over."""
    found: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: found.append(what.exc_value))
    return found


@pytest.fixture(autouse=True)
def once_a_test() -> Iterator[None]:
    begin_triton_key.cache_clear()
    under_test._begin_first_ops.cache_clear()
    yield
    finish_head_start()
    begin_triton_key.cache_clear()
    under_test._begin_first_ops.cache_clear()


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def plant(**names: Any) -> None:
        cache = ModuleType("triton.runtime.cache")
        vars(cache).update(names)
        for name, module in {"triton": ModuleType("triton"), "triton.runtime": ModuleType("triton.runtime")}.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "triton.runtime.cache", cache)
        monkeypatch.setattr(under_test, "find_spec", lambda name: name)

    return plant


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A driver with one device that writes its calls down, and a torch that was built for it."""
    calls: list[tuple[Any, ...]] = []

    def note(name: str, status: Callable[..., int]) -> Callable[..., int]:
        return lambda *args: (calls.append((name, *args)), status(*args))[1]

    library = SimpleNamespace(
        cuInit=note("cuInit", lambda flags: 0),
        cuDeviceGet=note("cuDeviceGet", lambda device, index: 0 if index == 0 else 101),
        cuDevicePrimaryCtxRetain=note("cuDevicePrimaryCtxRetain", lambda context, device: 0),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(under_test, "_is_cuda_build", lambda: True)
    monkeypatch.setattr(under_test, "find_spec", lambda name: None)
    monkeypatch.setattr(under_test, "_run_first_ops", lambda torch, device: calls.append(("first ops", torch, device)))
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    return calls


class FakeTorch(ModuleType):
    """Two CUDA devices; says on which one it was put, and waits there for ``goes_on``."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.entered: list[int] = []
        self.goes_on = threading.Event()
        self.inference_mode = nullcontext
        self.cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, device=self._device)

    def _device(self, index: int) -> Any:
        self.entered.append(index)
        assert self.goes_on.wait(10)
        return nullcontext()

    def device(self, kind: str, index: int) -> str:
        return f"{kind}:{index}"


@pytest.fixture
def torch_to_come(monkeypatch: pytest.MonkeyPatch, driver: list[tuple[Any, ...]]) -> Iterator[FakeTorch]:
    """Not imported yet; ``sys.modules["torch"] = ...`` imports it."""
    torch = FakeTorch()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield torch
    torch.goes_on.set()
    monkeypatch.setitem(sys.modules, "torch", torch)
    wait("ostinato-device")


def first_ops(calls: list[tuple[Any, ...]]) -> list[Any]:
    return [call[2] for call in calls if call[0] == "first ops"]


def wait(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)


def names(calls: list[tuple[Any, ...]]) -> list[str]:
    return [call[0] for call in calls]


def test_the_key_is_worked_out_once_in_a_thread(plant: Callable[..., None]) -> None:
    threads: list[threading.Thread] = []
    plant(triton_key=lambda: threads.append(threading.current_thread()))
    thread = begin_triton_key()
    assert thread is not None and thread.daemon
    thread.join(10)
    assert begin_triton_key() is thread
    assert threads == [thread]


def test_another_triton_without_it_is_no_error(plant: Callable[..., None], raised: list[object]) -> None:
    plant()
    thread = begin_triton_key()
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive() and not raised


@pytest.mark.parametrize("has_torch", [True, False])
def test_what_a_first_launch_imports_comes_after_the_key(
    plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch, has_torch: bool
) -> None:
    """Where torch is not there yet it is left to whoever waits for torch."""
    done: list[str] = []
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if has_torch:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    plant(triton_key=lambda: done.append("key"))
    real = under_test.import_module
    monkeypatch.setattr(under_test, "import_module", lambda name: (done.append(name), real(name))[1])
    thread = begin_triton_key()
    assert thread is not None
    thread.join(10)
    assert done == ["triton.runtime.cache", "key", *["triton.experimental.gluon.nvidia.hopper"] * has_torch]


def test_no_thread_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "find_spec", lambda name: None)
    assert begin_triton_key() is None


def test_a_fork_waits_for_the_key(plant: Callable[..., None]) -> None:
    """The child could import nothing of what the thread was importing."""
    plant(triton_key=lambda: time.sleep(0.2))
    thread = begin_triton_key()
    assert thread is not None and thread.is_alive()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert not thread.is_alive()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_the_context_of_the_device_is_made(driver: list[tuple[Any, ...]], device: str) -> None:
    head_start(device)
    wait("ostinato-context")
    finish_head_start()
    assert names(driver) == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert driver[1][2] == 0


@pytest.mark.parametrize("device", ["cuda:7", "cuda:x"])
def test_a_device_that_is_not_there_is_left_for_torch_to_refuse(driver: list[tuple[Any, ...]], device: str) -> None:
    head_start(device)
    wait("ostinato-context")
    assert "cuDevicePrimaryCtxRetain" not in names(driver)


def test_an_index_beyond_the_driver_s_integers_is_left_for_torch_too(
    driver: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, raised: list[object]
) -> None:
    loaded: list[str] = []
    real = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGet=lambda device, index: libc.abs(index))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: loaded.append(name) or real)
    head_start(f"cuda:{10**30}")
    wait("ostinato-context")
    assert loaded and not raised


def test_a_missing_driver_is_no_error(
    driver: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, raised: list[object]
) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    head_start()
    wait("ostinato-context")
    assert not driver and not raised


def test_nothing_begins_on_a_cpu(driver: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    head_start("cpu")
    monkeypatch.setattr(under_test, "_is_cuda_build", lambda: False)
    head_start()
    assert threading.active_count() == before and not driver


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_first_ops_run_once_somebody_imports_torch(
    driver: list[tuple[Any, ...]], torch_to_come: FakeTorch, monkeypatch: pytest.MonkeyPatch, device: str, index: int
) -> None:
    imported: list[tuple[str, int]] = []
    real = under_test.import_module
    monkeypatch.setattr(
        under_test, "import_module", lambda name: (imported.append((name, len(first_ops(driver)))), real(name))[1]
    )
    head_start(device)
    head_start(device)  # by a program, and by the command that it calls
    time.sleep(0.1)
    assert first_ops(driver) == [] and imported == []
    torch_to_come.goes_on.set()
    monkeypatch.setitem(sys.modules, "torch", torch_to_come)
    finish_head_start()
    assert first_ops(driver) == [f"cuda:{index}"] and torch_to_come.entered == [index]
    assert imported == [("torch", 0), ("triton.experimental.gluon.nvidia.hopper", 1)]
    assert "ostinato-device" not in [thread.name for thread in threading.enumerate()]


def test_whoever_asks_for_the_end_of_first_ops_waits_for_it(
    driver: list[tuple[Any, ...]], torch_to_come: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines, made at once on two threads."""
    monkeypatch.setitem(sys.modules, "torch", torch_to_come)
    head_start()
    ended: list[int] = []
    asking = [
        threading.Thread(target=lambda: (finish_head_start(), ended.append(len(first_ops(driver))))) for _ in "ab"
    ]
    for thread in asking:
        thread.start()
    time.sleep(0.1)
    assert ended == []
    torch_to_come.goes_on.set()
    for thread in asking:
        thread.join(10)
    assert ended == [1, 1]


@pytest.mark.parametrize(("device", "is_available"), [("cuda:2", True), ("cuda", False)])
def test_first_ops_leave_a_missing_device_for_the_engine_to_refuse(
    driver: list[tuple[Any, ...]],
    torch_to_come: FakeTorch,
    monkeypatch: pytest.MonkeyPatch,
    raised: list[object],
    device: str,
    is_available: bool,
) -> None:
    torch_to_come.cuda.is_available = lambda: is_available
    monkeypatch.setitem(sys.modules, "torch", torch_to_come)
    head_start(device)
    finish_head_start()
    assert torch_to_come.entered == [] and first_ops(driver) == [] and not raised


def test_first_ops_that_fail_fail_nobody(
    driver: list[tuple[Any, ...]], torch_to_come: FakeTorch, monkeypatch: pytest.MonkeyPatch, raised: list[object]
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(under_test, "_run_first_ops", fails)
    monkeypatch.setitem(sys.modules, "torch", torch_to_come)
    torch_to_come.goes_on.set()
    head_start()
    finish_head_start()
    assert torch_to_come.entered == [0] and not raised


def test_first_ops_are_ops_of_torch() -> None:
    """Here on the CPU, where they are the same calls."""
    torch = importlib.import_module("torch")
    before = {id(tensor) for tensor in live_tensors(torch)}
    with torch.inference_mode():
        under_test._run_first_ops(torch, torch.device("cpu"))
    assert {id(tensor) for tensor in live_tensors(torch)} <= before, "nothing stays allocated"


def live_tensors(torch: Any) -> list[Any]:
    return [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]


def test_a_fork_waits_for_first_ops_but_not_for_torch(
    driver: list[tuple[Any, ...]], torch_to_come: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    head_start()
    began = time.monotonic()
    end_child(os.fork())
    assert time.monotonic() - began < 5 and first_ops(driver) == []
    monkeypatch.setitem(sys.modules, "torch", torch_to_come)
    while not torch_to_come.entered:
        time.sleep(0.01)
    threading.Timer(0.2, torch_to_come.goes_on.set).start()
    end_child(os.fork())
    assert first_ops(driver) == ["cuda:0"]


def end_child(pid: int) -> None:
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_process_that_never_imports_torch_ends_at_once() -> None:
    code = "import ostinato.engine.before_torch as h; h._is_cuda_build = lambda: True; h._begin_first_ops(0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=15)


def test_the_interpreter_changes_hands_faster_until_the_key_is_there(
    driver: list[tuple[Any, ...]], plant: Callable[..., None]
) -> None:
    usual, goes_on = sys.getswitchinterval(), threading.Event()
    plant(triton_key=lambda: goes_on.wait(10))
    head_start()
    head_start()  # by a program, and by the command that it calls
    during = sys.getswitchinterval()
    goes_on.set()
    wait("ostinato-switching")
    assert during == pytest.approx(0.0005)
    assert sys.getswitchinterval() == pytest.approx(usual)


@pytest.mark.parametrize("has_cuda", [True, False])
def test_a_build_of_torch_with_cuda_is_known_by_its_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_cuda: bool
) -> None:
    (tmp_path / "lib").mkdir()
    if has_cuda:
        (tmp_path / "lib" / "libtorch_cuda.so").touch()
    spec = importlib.util.spec_from_file_location(
        "torch", tmp_path / "x.py", submodule_search_locations=[str(tmp_path)]
    )
    monkeypatch.setattr(under_test, "find_spec", lambda name: spec)
    assert under_test._is_cuda_build() is has_cuda


def test_it_imports_no_torch() -> None:
    code = "import sys, ostinato.engine.before_torch as h; h.head_start('cpu'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
