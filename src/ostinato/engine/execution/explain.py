"""What the asked mode, partition and compiler become for a model on this machine. Loads no weights."""

from __future__ import annotations

from typing import Any

from ostinato.engine.attention import get_attention_backend
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.loading import find_device
from ostinato.engine.models import ModelConfig
from ostinato.engine.weights import ProgressReporter, resolve_model
from ostinato.runtime import Compiler, Mode, ModeRequest, Partition, resolve_mode

__all__ = ["explain_modes"]


def explain_modes(
    config: EngineConfig, *, draft_length: int = 0, progress: ProgressReporter | None = None
) -> dict[str, Any]:
    """``{"device", "attention", "asked", "resolved", "reasons", "modes": [a row for every mode]}``.

    Args:
        config: what was asked.
        draft_length: speculated tokens a request; decode then brings 1 + that many.

    Raises:
        The errors of `load_model` that concern names, devices and the model's config.
    """
    device = find_device(config.device)
    model = ModelConfig.from_hf(resolve_model(config.model, load_format=config.load_format, progress=progress).config)
    attention = get_attention_backend(config.attention, device.type)

    def resolve(mode: str) -> dict[str, Any]:
        resolved = resolve_mode(
            ModeRequest(
                mode=Mode(mode),
                partition=Partition(config.partition),
                compiler=Compiler(config.compile),
                support=attention.capture_support,
                uniform_query_len=1 + draft_length,
                knows_requests=True,
                device_type=device.type,
            )
        )
        return {
            "asked": mode,
            "mode": resolved.mode.value,
            "partition": resolved.partition.value,
            "compile": resolved.compiler.value,
            "reasons": list(resolved.reasons),
            **_steps(resolved.mode),
        }

    asked = resolve(config.mode)
    return {
        "model": config.model,
        "family": model.family,
        "device": str(device),
        "attention": {"name": attention.name, "support": attention.capture_support.name},
        "asked": {"mode": config.mode, "partition": config.partition, "compile": config.compile},
        "resolved": {name: asked[name] for name in ("mode", "partition", "compile")},
        "reasons": asked["reasons"],
        "modes": [resolve(mode.value) for mode in Mode],
    }


def _steps(mode: Mode) -> dict[str, str]:
    """Runtime mode of a decode step and of a step that holds a prompt, each within the largest bucket."""
    piecewise = "PIECEWISE" if mode in (Mode.PIECEWISE, Mode.FULL_AND_PIECEWISE) else "EAGER"
    decode = "EAGER" if mode is Mode.NONE else "PIECEWISE" if mode is Mode.PIECEWISE else "FULL"
    return {"decode": decode, "mixed": "FULL" if mode is Mode.FULL else piecewise}
