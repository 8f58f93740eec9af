"""Triton's key is worked out in a thread, where there is a Triton; what fails there fails nobody."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from ostinato.engine.execution import triton_key
from ostinato.engine.execution.triton_key import begin_triton_key


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def plant(**names: Any) -> None:
        cache = ModuleType("triton.runtime.cache")
        vars(cache).update(names)
        for name, module in {"triton": ModuleType("triton"), "triton.runtime": ModuleType("triton.runtime")}.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "triton.runtime.cache", cache)
        monkeypatch.setattr(triton_key, "find_spec", lambda name: name)

    return plant


def test_it_is_worked_out_in_a_thread(plant: Callable[..., None]) -> None:
    threads: list[threading.Thread] = []
    plant(triton_key=lambda: threads.append(threading.current_thread()))
    thread = begin_triton_key()
    assert thread is not None and thread.daemon
    thread.join(10)
    assert threads == [thread]


def test_another_triton_without_it_is_no_error(plant: Callable[..., None], recwarn: pytest.WarningsRecorder) -> None:
    plant()
    thread = begin_triton_key()
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive() and not recwarn.list  # pytest would warn of an exception in a thread


def test_no_thread_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_key, "find_spec", lambda name: None)
    assert begin_triton_key() is None
