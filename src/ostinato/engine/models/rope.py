"""Reading rotary settings from a ``config.json``, in the older form and in that of transformers 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.engine.layers import RopeConfig
from ostinato.errors import CheckpointError, UnsupportedArchitectureError

__all__ = ["read_rope"]

_KINDS = ("default", "linear", "llama3")


def read_rope(hf: Mapping[str, Any]) -> RopeConfig:
    """The rotary settings.

    Older files have ``rope_theta`` beside ``rope_scaling``; newer ones put all into ``rope_parameters``.

    Raises:
        UnsupportedArchitectureError: a kind of scaling, or a partial rotation, that the engine lacks.
        CheckpointError: the scaling lacks a value that it needs.
    """
    settings = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    theta = settings.get("rope_theta", hf.get("rope_theta", 10000.0))
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in _KINDS:
        raise UnsupportedArchitectureError(
            f"the engine has no rotary scaling of kind {kind!r}", fix=f"use a model with one of: {', '.join(_KINDS)}"
        )
    partial = settings.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedArchitectureError(
            f"the engine rotates whole heads, this model a part of {partial}", fix="use another model"
        )
    if kind == "default":
        return RopeConfig(theta=float(theta))
    try:
        if kind == "linear":
            return RopeConfig(kind=kind, theta=float(theta), factor=float(settings["factor"]))
        return RopeConfig(
            kind=kind,
            theta=float(theta),
            factor=float(settings["factor"]),
            low_freq_factor=float(settings["low_freq_factor"]),
            high_freq_factor=float(settings["high_freq_factor"]),
            original_max_len=int(settings["original_max_position_embeddings"]),
        )
    except KeyError as missing:
        raise CheckpointError(
            f"config.json has {kind!r} rotary scaling without {missing.args[0]!r}",
            fix="restore config.json from where the model comes from",
        ) from missing
