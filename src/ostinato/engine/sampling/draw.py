"""Draws one token per row from its filtered distribution, given one uniform number per row.

Inverse transform sampling in vocabulary order: the first token at which the summed probability passes
the number. One number per row keeps seeded requests cheap and independent of their neighbours.
Greedy rows never come here. Called by the sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from ostinato.engine.request import SamplingParams
from ostinato.engine.sampling.filters import keep_thresholds

__all__ = ["draw_tokens"]

_BLOCK_ELEMENTS: Final = 1 << 24  # bounds float64 temporaries to 128 MiB each: they are not in the KV budget
_MIN_TEMPERATURE: Final = 1e-6  # below this float32 division overflows to what is greedy anyway


def draw_tokens(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> torch.Tensor:
    """One token per row.

    Args:
        logits: [num_rows, vocab] float32, after penalties; rows that are not finite give any token.
        params: one per row, temperature > 0.
        uniforms: one number in [0, 1) per row.

    Returns:
        [num_rows] int64 on the device of the logits.
    """
    block = max(1, _BLOCK_ELEMENTS // logits.shape[1])
    starts = range(0, logits.shape[0], block)
    drawn = [_draw_block(logits[i : i + block], params[i : i + block], uniforms[i : i + block]) for i in starts]
    return torch.cat(drawn)


def _draw_block(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> torch.Tensor:
    device, vocab = logits.device, logits.shape[1]
    temperatures = [max(p.temperature, _MIN_TEMPERATURE) for p in params]
    temperature, uniform = torch.tensor([temperatures, uniforms], dtype=torch.float64, device=device).unsqueeze(-1)
    largest, likeliest = logits.max(dim=-1, keepdim=True)
    scores = (logits - largest) / temperature.float()  # shifted first: 0 at the top, whatever the temperature
    weights = scores.exp().masked_fill(scores < keep_thresholds(scores, params), 0.0)
    sums = weights.cumsum(-1, dtype=torch.float64)
    token = torch.searchsorted(sums, uniform * sums[:, -1:], right=True).clamp(max=vocab - 1)
    # A rounded sum may step past the last token or onto one of no weight: then take the likeliest.
    return torch.where(weights.gather(-1, token) > 0, token, likeliest).squeeze(-1)
