"""`hardware_name` and `driver_version`: what measured times and captures hold for."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import torch

from ostinato.runtime.memory import driver

__all__ = ["driver_version", "hardware_name"]

_MODULE = Path("/proc/driver/nvidia/version")


def hardware_name(device: torch.device) -> str:
    """The GPU's name, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"


def driver_version() -> str:
    """The release of the NVIDIA driver, such as "580.95.05"; where the system does not tell, the CUDA version that it
    brings, such as "CUDA 13.0"; "unknown" without a driver."""
    try:
        release = re.search(r"\d+\.\d+(\.\d+)*", _MODULE.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # a container may hide it
        release = None
    if release is not None:
        return release.group()
    number = ctypes.c_int(0)
    try:
        failed = driver().cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return "unknown"
    return "unknown" if failed else f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
