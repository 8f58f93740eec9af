"""`choose_tokens`: from logits to the token of every row, whatever its settings. The last op of a step.

This is the form in plain torch, which says what the op means and is its CPU kernel; `engine.layers` has the op itself
and its CUDA kernel. Every operation works on rows, so a request's token depends on its own logits, settings and
counts and never on who shares the batch; a row of NaN harms no other. It looks at which rows need what, so on CUDA it
cannot be captured.
"""

from __future__ import annotations

import torch

from ostinato.engine.sampling.draw import draw_tokens
from ostinato.engine.sampling.greedy import NO_TOKEN, choose_greedy
from ostinato.engine.sampling.penalties import apply_penalties
from ostinato.engine.sampling.settings import Setting
from ostinato.engine.sampling.token_counts import count_tokens

__all__ = ["choose_tokens"]


def choose_tokens(
    logits: torch.Tensor, settings: torch.Tensor, count_rows: torch.Tensor, counts: torch.Tensor, out: torch.Tensor
) -> None:
    """Choose a token for each row, and count it where the row has penalties.

    Args:
        logits: [num_rows, vocab], any float dtype; never written to.
        settings: [num_rows, NUM_SETTINGS] float64, see `Setting`.
        count_rows: [num_rows] int64, the row of ``counts`` of each request that has penalties; 0 for no penalties.
        counts: [any, vocab] int16, see `token_counts`. The chosen token is added.
        out: [num_rows] int64; `NO_TOKEN` for a row whose largest score is not finite.
    """
    choose_greedy(logits, out)
    rows = ((settings[:, Setting.INVERSE_TEMPERATURE] > 0) | (count_rows > 0)).nonzero().squeeze(-1)
    if not rows.shape[0]:
        return
    settings, owners, scores = settings[rows], count_rows[rows], logits[rows].float()
    penalised = (owners > 0).nonzero().squeeze(-1)
    owners = owners[penalised]
    scores[penalised] = apply_penalties(scores[penalised], settings[penalised], counts[owners])
    chosen = torch.empty_like(rows)
    choose_greedy(scores, chosen)
    drawn = (settings[:, Setting.INVERSE_TEMPERATURE] > 0).nonzero().squeeze(-1)
    if drawn.shape[0]:
        tokens = draw_tokens(scores[drawn], settings[drawn])
        chosen[drawn] = torch.where(chosen[drawn] == NO_TOKEN, NO_TOKEN, tokens)
    out[rows] = chosen
    count_tokens(counts, owners, chosen[penalised])
