"""What the benchmark runs with: versions, and the command that was typed."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import torch

from ostinato._version import __version__

__all__ = ["command_line", "versions"]


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
