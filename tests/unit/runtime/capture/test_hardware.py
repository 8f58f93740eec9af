"""What measurements hold for."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from ostinato.runtime.capture import driver_version, hardware

RELEASE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 09:55:41 UTC 2025\nGCC version:\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12.2.0\n"


class Driver:
    """`cuDriverGetVersion` alone."""

    def __init__(self, number: int, failed: int = 0) -> None:
        self._number, self._failed = number, failed

    def cuDriverGetVersion(self, found: Any) -> int:
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = self._number
        return self._failed


@pytest.mark.parametrize("text", [RELEASE, OPEN])
def test_the_release_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(hardware, "_MODULE", tmp_path / "version")
    assert driver_version() == "580.95.05"


def test_what_the_driver_says_where_the_system_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_MODULE", tmp_path / "absent")
    monkeypatch.setattr(hardware, "driver", lambda: Driver(13000))
    assert driver_version() == "CUDA 13.0"
    monkeypatch.setattr(hardware, "driver", lambda: Driver(0, failed=1))
    assert driver_version() == "unknown"


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(hardware, "_MODULE", tmp_path / "absent")
    monkeypatch.setattr(hardware, "driver", absent)
    assert driver_version() == "unknown"
