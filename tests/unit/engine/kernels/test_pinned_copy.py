"""Copies by a kernel reach the pinned memory itself. How they run on a device is tested there."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from ostinato.engine.kernels.pinned_copy import KernelCopy


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Addresses of the sides of each launch; the memory of the CPU passes for pinned."""
    found: list[int] = []

    def launch_copy(target: torch.Tensor, source: torch.Tensor) -> None:
        found.extend((target.data_ptr(), source.data_ptr()))
        target.copy_(source)

    module = ModuleType("ostinato.engine.kernels.triton_copy")
    vars(module)["launch_copy"] = launch_copy
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    return found


@pytest.mark.parametrize("is_moved", [False, True], ids=["in place", "moved to the device"])
def test_copies_reach_the_memory_itself(launched: list[int], monkeypatch: pytest.MonkeyPatch, is_moved: bool) -> None:
    """torch moves pinned memory that was allocated beside one device when another is named for it."""
    pinned, other = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    seen = pinned.view(torch.uint8)
    monkeypatch.setattr(torch, "as_tensor", lambda memory, *, device: seen.clone() if is_moved else seen)
    copy = KernelCopy(pinned, torch.device("cpu"))
    for step, run in enumerate([copy.into(other)] * 2, 1):
        pinned.fill_(step)
        run()
        assert other.tolist() == [step] * 4
    other.fill_(7)
    copy.from_device(other)
    assert pinned.tolist() == [7] * 4
    to_device, from_device = [other.data_ptr(), pinned.data_ptr()], [pinned.data_ptr(), other.data_ptr()]
    assert launched == ([] if is_moved else [*to_device, *to_device, *from_device])
