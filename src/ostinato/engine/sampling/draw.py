"""Draws one token per row from its filtered distribution, given one uniform number per row.

Inverse transform sampling in vocabulary order: the first token at which the summed mass passes the number's share.
One number per row keeps seeded requests cheap and independent of their neighbours. Greedy rows never come here.
Called by `choose_tokens`.
"""

from __future__ import annotations

from typing import Final

import torch

from ostinato.engine.sampling.filters import keep_thresholds
from ostinato.engine.sampling.mass import mass_bits, masses_of
from ostinato.engine.sampling.settings import Setting

__all__ = ["draw_tokens"]

_BLOCK_ELEMENTS: Final = 1 << 24  # bounds int64 temporaries to 128 MiB each: they are not in the KV budget


def draw_tokens(logits: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """One token per row.

    Args:
        logits: [num_rows, vocab] float32, after penalties; rows that are not finite give any token.
        settings: [num_rows, NUM_SETTINGS] float64, none of them greedy.

    Returns:
        [num_rows] int64 on the device of the logits.
    """
    block = max(1, _BLOCK_ELEMENTS // logits.shape[1])
    drawn = [_draw_block(*rows) for rows in zip(logits.split(block), settings.split(block), strict=True)]
    return torch.cat(drawn)


def _draw_block(logits: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    vocab = logits.shape[1]
    inverse, uniform = settings[:, Setting.INVERSE_TEMPERATURE, None], settings[:, Setting.UNIFORM, None]
    # Shifted first: 0 at the top, whatever the temperature.
    scores = (logits - logits.max(dim=-1, keepdim=True).values) * inverse.float()
    masses = masses_of(scores, mass_bits(vocab)).masked_fill(scores < keep_thresholds(scores, settings), 0)
    sums = masses.cumsum(-1)
    total = sums[:, -1:]
    target = torch.minimum((uniform * total.double()).to(torch.int64), total - 1)  # the product may be rounded up
    return torch.searchsorted(sums, target, right=True).clamp(max=vocab - 1).squeeze(-1)
