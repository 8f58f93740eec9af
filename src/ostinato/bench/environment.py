"""What the benchmark runs on: the device's name, versions, the command that was typed."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

from ostinato._version import __version__

__all__ = ["command_line", "hardware_name", "versions"]


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


def versions(device: torch.device, packages: tuple[str, ...] = ()) -> dict[str, str]:
    """Of Ostinato, torch, Python, what the device brings, and of ``packages`` that are installed."""
    found = {"ostinato": __version__, "torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
    for package in ("triton", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def command_line() -> list[str]:
    """As typed, with the program's own path left out."""
    return ["ostinato", *sys.argv[1:]]
