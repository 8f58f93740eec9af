"""What a measurement runs with: versions, the command that was typed, and all of that for a command's JSON."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import sys
from importlib import metadata
from typing import Any

import torch

from ostinato._version import __version__
from ostinato.bench.naming import without_folders
from ostinato.engine.config import EngineConfig
from ostinato.runtime import hardware_name

__all__ = ["command_line", "made", "versions"]


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


def made(device: torch.device, config: EngineConfig) -> dict[str, Any]:
    """How a document came about, for the JSON of commands whose output is kept as evidence: ``{"command", "date",
    "hardware", "versions", "config"}``, as `Evidence` has them, without folders of this machine.

    Args:
        config: as far as it is resolved.
    """
    facts: dict[str, Any] = without_folders(
        {
            "command": command_line(),
            "date": datetime.date.today().isoformat(),
            "hardware": hardware_name(device),
            "versions": versions(device),
            "config": dataclasses.asdict(config),
        }
    )
    return facts
