"""Names of evidence files and plots, and texts without folders of this machine. Pure functions."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["file_name", "short_hardware", "without_folders"]

_BRANDS = re.compile(r"\b(NVIDIA|AMD|Intel|GeForce|Tesla|Instinct|Corporation|\(R\)|\(TM\))", re.IGNORECASE)
_ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:[\w.+@%-]+/)+([\w.+@%-]*)")


def short_hardware(name: str) -> str:
    """ "NVIDIA H200" -> "h200", "NVIDIA A100-SXM4-80GB" -> "a100-sxm4-80gb", "x86_64" -> "x86-64"."""
    rest = _BRANDS.sub(" ", name).lower()
    return re.sub(r"[^a-z0-9]+", "-", rest).strip("-") or "unknown"


def file_name(bench: str, model: str, hardware: str, day: str, *, suffix: str = "json") -> str:
    """``<bench>_<model>_<hardware>_<yyyymmdd>.json``; ``day`` is an ISO date, ``model`` a name or folder."""
    stem = re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-") or "model"
    return f"{bench}_{stem}_{short_hardware(hardware)}_{day.replace('-', '')}.{suffix}"


def without_folders(value: Any) -> Any:
    """``value`` with each absolute path in its texts cut to its last part; lists and mappings are walked."""
    if isinstance(value, str):
        return _ABSOLUTE.sub(lambda match: match[1] or "...", value)
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    return value
