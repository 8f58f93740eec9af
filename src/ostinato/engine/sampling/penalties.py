"""Repetition, presence and frequency penalties: logits changed by the tokens seen so far.

Rows without penalties are passed through as they are. Counts are built from the requests' own token
lists, in one flat scatter for all rows. Called by the sampler, before temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostinato.engine.request import Request

__all__ = ["apply_penalties"]


def apply_penalties(
    logits: torch.Tensor, requests: Sequence[Request], newest: torch.Tensor | None = None
) -> torch.Tensor:
    """Penalised logits.

    A token in prompt or output has its logit divided by the repetition penalty when positive, else
    multiplied by it; each token then loses presence_penalty once if it is in the output, and
    frequency_penalty for each time that it is.

    Args:
        logits: [num_reqs, vocab], never written to.
        requests: row owners.
        newest: [num_reqs] int64 on the device, the pending token of each request that has one.

    Returns:
        [num_reqs, vocab]: float32 when a row has penalties, else ``logits`` itself.
    """
    penalised = [i for i, request in enumerate(requests) if request.params.has_penalties]
    if not penalised:
        return logits
    owners, device, vocab = [requests[i] for i in penalised], logits.device, logits.shape[1]
    rows = torch.tensor(penalised, device=device)
    output_counts = _count_tokens([r.output_token_ids for r in owners], vocab, device)
    if newest is not None:
        _count_pending(output_counts, newest[rows], [r.num_pending_tokens for r in owners])
    is_seen = (output_counts + _count_tokens([r.prompt_token_ids for r in owners], vocab, device)) > 0
    settings = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in (r.params for r in owners)]
    repetition, presence, frequency = torch.tensor(settings, dtype=torch.float32, device=device).T.unsqueeze(-1)

    scores = logits[rows].float()
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(is_seen, repeated, scores)
    scores = scores - presence * (output_counts > 0) - frequency * output_counts
    result = logits.to(torch.float32, copy=True)
    result[rows] = scores
    return result


def _count_pending(counts: torch.Tensor, newest: torch.Tensor, num_pending: Sequence[int]) -> None:
    """Count the tokens that only the device knows: ``newest`` [num_lists], for lists with ``num_pending`` of 1."""
    is_known = (newest >= 0) & (newest < counts.shape[1])
    once = torch.tensor(num_pending, dtype=counts.dtype, device=counts.device) * is_known
    counts.scatter_add_(1, newest.where(is_known, 0).unsqueeze(-1), once.to(counts.dtype).unsqueeze(-1))


def _count_tokens(token_lists: Sequence[Sequence[int]], vocab: int, device: torch.device) -> torch.Tensor:
    """How often each token occurs in each list: [num_lists, vocab] int32, on ``device``."""
    # Ids past the logits' width (a tokenizer larger than the head) cannot be sampled: not counted.
    flat = [row * vocab + t for row, tokens in enumerate(token_lists) for t in tokens if t < vocab]
    index = torch.tensor(flat, dtype=torch.int64, device=device)
    counts = torch.zeros(len(token_lists) * vocab, dtype=torch.int32, device=device)
    # Not bincount: on CUDA that waits for the device. Integer sums are exact in any order.
    counts.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))
    return counts.view(len(token_lists), vocab)
