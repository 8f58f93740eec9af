"""Capture without protection: what a program gets that talks to the capture backend itself.

No static buffers, no bridges, no guards, no copies of outputs: the controls of the fault fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ostinato.runtime.capture import CaptureBackend, CapturedGraph, select_backend

__all__ = ["bare_backend", "record"]


@contextmanager
def bare_backend(device: str) -> Iterator[CaptureBackend]:
    """A backend that nothing stands in front of, closed at the end."""
    backend = select_backend(device)
    try:
        with torch.no_grad():
            yield backend
    finally:
        backend.close()


def record(backend: CaptureBackend, fn: Callable[[], Any]) -> tuple[CapturedGraph, Any]:
    """One segment that holds ``fn()``, and its result at the addresses that replays write."""
    with backend.phase(), backend.session():
        backend.begin()
        out = fn()
        return backend.end(), out
