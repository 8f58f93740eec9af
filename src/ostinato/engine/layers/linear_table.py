"""Which implementation a linear layer of up to 128 rows takes: measured choices where there are any, else defaults.

Choices are kept as JSON under the cache folder, in a file for each GPU, torch and triton; what another of
these has measured is not read. Filled by `linear_tuning`; asked by `FusedLinears`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ostinato._whole_file import replace_file
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, LinearTiles, default_tiles

__all__ = ["LinearTable", "load_table", "save_table", "table_key", "table_path"]

# Raise it when the kernels change so that older measurements say nothing about them.
_TABLE_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class LinearTable:
    """Measured choices; a shape that is not among them takes the default tiles."""

    choices: Mapping[LinearShape, LinearTiles | None] = field(default_factory=dict)
    """None: cuBLAS, with the norm, gating and addition beside it."""

    def choose(self, shape: LinearShape) -> LinearTiles | None:
        """The tiles of the fused kernel, or None for cuBLAS."""
        return self.choices[shape] if shape in self.choices else default_tiles(shape)


def table_key(device: torch.device, *, use_pdl: bool) -> dict[str, str]:
    """What measurements hold for: they are stale when any of it differs. ``use_pdl`` as for `FusedLinears`."""
    return {
        "table": str(_TABLE_VERSION),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": str(torch.__version__),
        "triton": _triton_version(),
        "pdl": str(use_pdl),
    }


def table_path(root: Path, key: Mapping[str, str]) -> Path:
    """Where the choices for ``key`` lie under the cache folder ``root``."""
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return root / "tuning" / f"linear-{digest}.json"


def load_table(root: Path, key: Mapping[str, str]) -> LinearTable:
    """The choices stored for ``key``; an empty table if there are none or the file is unreadable."""
    try:
        stored = json.loads(table_path(root, key).read_text(encoding="utf-8"))
        if stored["key"] != dict(key):
            return LinearTable()
        return LinearTable(choices=dict(_entry(row) for row in stored["choices"]))
    except (OSError, ValueError, KeyError, TypeError):
        return LinearTable()


def save_table(root: Path, key: Mapping[str, str], table: LinearTable) -> bool:
    """Store ``table``, whole or not at all; False if the folder cannot be written, which costs a measurement later."""
    rows = [
        {"shape": asdict(shape), "tiles": None if tiles is None else asdict(tiles)}
        for shape, tiles in table.choices.items()
    ]
    path = table_path(root, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"key": dict(key), "choices": rows}, indent=1))
    except OSError:
        return False
    return True


def _entry(row: dict[str, Any]) -> tuple[LinearShape, LinearTiles | None]:
    shape = LinearShape(**{**row["shape"], "kind": LinearKind(row["shape"]["kind"])})
    return shape, None if row["tiles"] is None else LinearTiles(**row["tiles"])


def _triton_version() -> str:
    for name in ("triton", "pytorch-triton"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "none"
