"""Top-k, top-p and min-p as one threshold per row.

All three keep the tokens at least as likely as some value, so a row's filters are one number and the
mask is one comparison, in vocabulary order. Tokens tied at the threshold are all kept: which of them a
sort puts first would otherwise depend on the device. Called by the draw, after temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostinato.engine.request import SamplingParams

__all__ = ["keep_thresholds"]


def keep_thresholds(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The smallest score that each row keeps.

    Top-k is applied first, then top-p over what it left (renormalised), then min-p.

    Args:
        scores: [num_rows, vocab] float32, after temperature, each row's largest being 0.
        params: one per row; rows may all differ.

    Returns:
        [num_rows, 1] float32; keep where ``scores >= threshold``. -inf keeps all.
    """
    vocab, device = scores.shape[1], scores.device
    min_p = torch.tensor([[p.min_p] for p in params], dtype=torch.float32, device=device)
    thresholds = min_p.log()  # the largest score is 0, so p >= min_p * p_max is score >= log(min_p)
    # A small k needs only the k largest scores; a full sort is for rows that set top_p alone.
    top_k_rows = [i for i, p in enumerate(params) if 0 < p.top_k < vocab]
    top_p_rows = [i for i, p in enumerate(params) if p.top_p < 1 and not 0 < p.top_k < vocab]
    for row_list, width in ((top_k_rows, max((params[i].top_k for i in top_k_rows), default=0)), (top_p_rows, vocab)):
        if not row_list:
            continue
        rows = torch.tensor(row_list, device=device)
        largest_first = scores[rows].topk(width).values if width < vocab else scores[rows].sort(descending=True).values
        limits = [(min(params[i].top_k or vocab, vocab), params[i].top_p) for i in row_list]
        top_k, top_p = torch.tensor(limits, dtype=torch.float64, device=device).T.unsqueeze(-1)
        thresholds[rows] = torch.maximum(thresholds[rows], _last_kept(largest_first, top_k, top_p))
    return thresholds


def _last_kept(largest_first: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The score of the last token kept: [num_rows, 1].

    A token is kept while those before it have not yet reached top_p, so the first one always is. In
    float64, where the order of a sum does not show: a row gives the same result in any batch.
    """
    is_top_k = torch.arange(largest_first.shape[1], device=largest_first.device) < top_k
    weights = torch.where(is_top_k, largest_first.double().exp(), 0.0)
    sums = weights.cumsum(-1)
    is_kept = is_top_k & ((sums - weights < top_p * sums[:, -1:]) | (top_p >= 1))
    last = is_kept.sum(-1, keepdim=True).clamp(min=1) - 1
    return largest_first.gather(-1, last)
