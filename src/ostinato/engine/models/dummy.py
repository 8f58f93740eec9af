"""Random weights, for tests and for measuring speed where no checkpoint is at hand."""

from __future__ import annotations

import torch
from torch import nn

from ostinato.engine.layers import RMSNorm

__all__ = ["fill_dummy"]

_SPREAD = 0.02  # standard deviation, as models are initialised for training


def fill_dummy(model: nn.Module, seed: int) -> None:
    """See `DecoderModel.init_dummy`. Norms get ones, everything else normal values."""
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, _SPREAD, generator=generator)
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.weight.fill_(1.0)
