"""`hardware_name`: what measured times hold for."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

__all__ = ["hardware_name"]


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
