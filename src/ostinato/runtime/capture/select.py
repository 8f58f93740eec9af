"""Pick the capture backend for a device. A registry: other devices add themselves here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.errors import ConfigError, DeviceUnavailableError, UnknownNameError
from ostinato.runtime.capture.backend import CaptureBackend
from ostinato.runtime.capture.cuda import CudaBackend
from ostinato.runtime.capture.simulated import SimulatedBackend

__all__ = ["BACKENDS", "as_device", "select_backend"]

BACKENDS: dict[str, Callable[..., CaptureBackend]] = {"cuda": CudaBackend, "cpu": SimulatedBackend}
"""Device type -> constructor, of a device and ``shares_executables``."""


def select_backend(device: torch.device | str, *, shares_executables: bool = False) -> CaptureBackend:
    """A new backend for ``device``: `cuda` on CUDA, `simulated` on the CPU.

    Args:
        shares_executables: graphs of one topology, at the same place of their plans, share an executable.

    Raises:
        UnknownNameError: no backend for this device type.
        DeviceUnavailableError: the device is not on this machine, or its driver cannot share executables.
    """
    device = as_device(device)
    if device.type not in BACKENDS:
        raise UnknownNameError.of("device type for graphs", device.type, list(BACKENDS))
    return BACKENDS[device.type](device, shares_executables=shares_executables)


def as_device(device: torch.device | str) -> torch.device:
    """``device`` as torch has it.

    Raises:
        ConfigError: it names no device.
        DeviceUnavailableError: torch finds no CUDA device.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"{device!r} names no device", fix='use "cpu", "cuda" or "cuda:N"') from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailableError(
            f"device {found} asked for, but torch finds no CUDA device", fix="use device='cpu' (simulated graphs)"
        )
    return found
