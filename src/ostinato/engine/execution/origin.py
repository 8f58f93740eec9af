"""What a manifest holds for: machine, model, weights, versions and settings. Any difference makes it stale.

The name of a model is not the model: another one may lie in the same folder by now. So its configuration and its tensor
files count too. Called by `CaptureManifest`.
"""

from __future__ import annotations

import dataclasses
from importlib import metadata
from typing import Final

import torch

from ostinato._version import __version__
from ostinato.engine.execution.loading import LoadedModel
from ostinato.engine.execution.model_identity import digest, model_identity
from ostinato.runtime import driver_version, hardware_name

__all__ = ["origin_of"]

_NO_PART: Final = frozenset(
    {"model", "manifest", "seed", "capture", "capture_share", "costs"}
    | {"dispatch", "overlap", "on_moved", "shadow_share"}
)
"""Settings that change no graph, and the one that is a fact of its own."""


def origin_of(loaded: LoadedModel) -> dict[str, str]:
    """Facts by name, each short enough for a message."""
    settings = {name: value for name, value in dataclasses.asdict(loaded.config).items() if name not in _NO_PART}
    return {
        "hardware": hardware_name(loaded.device),
        **_driver_of(loaded.device),
        "model": loaded.config.model,
        "model config": model_identity(loaded.model.config),
        "weights": loaded.weights_id,
        "torch": str(torch.__version__),
        **_triton(),
        "ostinato": __version__,
        "settings": digest(settings),
    }


def _driver_of(device: torch.device) -> dict[str, str]:
    return {"CUDA": str(torch.version.cuda), "driver": driver_version()} if device.type == "cuda" else {}


def _triton() -> dict[str, str]:
    for package in ("triton", "pytorch-triton"):
        try:
            return {"triton": metadata.version(package)}
        except metadata.PackageNotFoundError:
            continue
    return {}
