"""Repetition, presence and frequency penalties: logits changed by the tokens seen so far.

Called by `choose_tokens` for the rows that have any, before temperature.
"""

from __future__ import annotations

import torch

from ostinato.engine.sampling.settings import Setting

__all__ = ["apply_penalties"]


def apply_penalties(logits: torch.Tensor, settings: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Penalised logits.

    A token in prompt or output has its logit divided by the repetition penalty when positive, else
    multiplied by it; each token then loses presence_penalty once if it is in the output, and
    frequency_penalty for each time that it is.

    Args:
        logits: [num_rows, vocab] float32, never written to.
        settings: [num_rows, NUM_SETTINGS] float64.
        counts: [num_rows, vocab] int16, see `token_counts`.

    Returns:
        [num_rows, vocab] float32.
    """
    columns = (Setting.REPETITION, Setting.PRESENCE, Setting.FREQUENCY)
    repetition, presence, frequency = (settings[:, column, None].float() for column in columns)
    outputs = (counts >> 1).float()
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    scores = torch.where(counts != 0, repeated, logits)
    return scores - presence * (outputs > 0) - frequency * outputs
