"""The most likely token of each row, or -1 where the row has none. Called by `choose_tokens`."""

from __future__ import annotations

from typing import Final

import torch

__all__ = ["NO_TOKEN", "choose_greedy"]

NO_TOKEN: Final = -1  # never leaves the engine as a choice: the request ends with an error


def choose_greedy(logits: torch.Tensor, out: torch.Tensor) -> None:
    """Write the index of each row's largest logit.

    Args:
        logits: [num_rows, vocab], any float dtype.
        out: [num_rows] int64; `NO_TOKEN` where the largest logit is not finite (a NaN, an infinity, or every token
            ruled out).
    """
    # max passes NaN on, so one look at the largest value judges the whole row.
    largest, tokens = logits.max(dim=-1)
    out.copy_(tokens.masked_fill(~largest.isfinite(), NO_TOKEN))
