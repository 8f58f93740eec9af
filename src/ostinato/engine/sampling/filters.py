"""Top-k, top-p and min-p as one threshold per row.

All three keep the tokens at least as likely as some value, so a row's filters are one number and the
mask is one comparison, in vocabulary order. Tokens tied at the threshold are all kept: which of them a
sort puts first would otherwise depend on the device. Called by the draw, after temperature.
"""

from __future__ import annotations

import torch

from ostinato.engine.sampling.mass import mass_bits, masses_of
from ostinato.engine.sampling.settings import Setting

__all__ = ["keep_thresholds"]


def keep_thresholds(scores: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """The smallest score that each row keeps.

    Top-k is applied first, then top-p over what it left (renormalised), then min-p.

    Args:
        scores: [num_rows, vocab] float32, after temperature, each row's largest being 0.
        settings: [num_rows, NUM_SETTINGS] float64; rows may all differ.

    Returns:
        [num_rows, 1] float32; keep where ``scores >= threshold``. -inf keeps all.
    """
    vocab = scores.shape[1]
    thresholds = settings[:, Setting.MIN_SCORE, None].float()
    top_k, top_p = settings[:, Setting.TOP_K], settings[:, Setting.TOP_P]
    # A small k needs only the k largest scores; a full sort is for rows that set top_p alone.
    has_top_k = (top_k > 0) & (top_k < vocab)
    most = torch.where(has_top_k, top_k, vocab)
    for is_limited in (has_top_k, (top_p < 1) & ~has_top_k):
        rows = is_limited.nonzero().squeeze(-1)
        if not rows.shape[0]:
            continue
        width = int(most[rows].max())
        largest_first = scores[rows].topk(width).values if width < vocab else scores[rows].sort(descending=True).values
        last = _last_kept(largest_first, most[rows, None], top_p[rows, None], mass_bits(vocab))
        thresholds[rows] = torch.maximum(thresholds[rows], last)
    return thresholds


def _last_kept(largest_first: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, bits: int) -> torch.Tensor:
    """The score of the last token kept: [num_rows, 1].

    A token is kept while those before it have not yet reached top_p, so the first one always is.
    """
    is_top_k = torch.arange(largest_first.shape[1], device=largest_first.device) < top_k
    masses = torch.where(is_top_k, masses_of(largest_first, bits), 0)
    sums = masses.cumsum(-1)
    needed = (top_p * sums[:, -1:].double()).to(torch.int64).clamp(min=1)
    is_kept = is_top_k & ((sums - masses < needed) | (top_p >= 1))
    last = is_kept.sum(-1, keepdim=True).clamp(min=1) - 1
    return largest_first.gather(-1, last)
