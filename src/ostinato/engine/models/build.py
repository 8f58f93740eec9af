"""Making a decoder on its device, with its parameters not yet filled. Called by `engine.execution`."""

from __future__ import annotations

import torch

from ostinato.engine.models.config import ModelConfig
from ostinato.engine.models.decoder import DecoderModel
from ostinato.errors import ConfigError

__all__ = ["build_model"]


def build_model(
    config: ModelConfig, *, device: torch.device | str, dtype: torch.dtype, max_model_len: int | None = None
) -> DecoderModel:
    """A decoder whose parameters are uninitialised and need no gradient.

    Args:
        config: from `ModelConfig.from_hf`.
        device: where parameters live.
        dtype: of parameters and activations.
        max_model_len: longest context in tokens; the model's own by default.

    Raises:
        ConfigError: ``max_model_len`` is not positive or exceeds what the model admits.
    """
    longest = config.max_model_len if max_model_len is None else max_model_len
    if not 0 < longest <= config.max_model_len:
        raise ConfigError(
            f"max_model_len is {longest}, the model admits 1 to {config.max_model_len} tokens",
            fix="lower max_model_len",
        )
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = DecoderModel(config, max_model_len=longest)
    finally:
        torch.set_default_dtype(previous)
    return model.to(device).eval()
