"""Log-probabilities of the chosen token and of the most likely ones.

From the model's own logits, before penalties, temperature and filters: what the model thought, not
what the settings made of it. Free when nobody asks; else one more copy to the host. Called by
`PendingSample`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostinato.engine.request import Request, TokenLogprobs
from ostinato.engine.sampling.host_copy import HostCopy

__all__ = ["PendingLogprobs", "start_logprobs"]


class PendingLogprobs:
    """Log-probabilities on their way to the host.

    Args:
        packed: [num_asked, 2 + 2 * num_top] float64: logprob, rank, ids and logprobs of the most likely tokens.
        asked: row of the batch -> how many of the most likely tokens its request wants.
    """

    def __init__(self, packed: torch.Tensor, asked: dict[int, int]) -> None:
        self._copy = HostCopy(packed)
        self._asked = asked

    def read(self, token_ids: Sequence[int]) -> list[TokenLogprobs | None]:
        """One entry per row; None where not asked for or without a token (a negative id)."""
        result: list[TokenLogprobs | None] = [None] * len(token_ids)
        packed = self._copy.read().tolist()
        for (row, num_asked), (logprob, rank, *rest) in zip(self._asked.items(), packed, strict=True):
            if token_ids[row] < 0:
                continue
            ids, values = rest[: len(rest) // 2][:num_asked], rest[len(rest) // 2 :][:num_asked]
            result[row] = TokenLogprobs(
                token_id=token_ids[row],
                logprob=logprob,
                rank=int(rank),
                top=tuple((int(i), value) for i, value in zip(ids, values, strict=True)),
            )
        return result


def start_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, requests: Sequence[Request]
) -> PendingLogprobs | None:
    """Log-probabilities for the rows whose request asks for them; None when nobody does.

    Args:
        logits: [num_reqs, vocab], any float dtype.
        token_ids: [num_reqs] int64, the chosen tokens.
        requests: row owners; ``params.logprobs`` says how many of the most likely tokens.
    """
    if all(request.is_plain for request in requests):  # half the cost of the look below
        return None
    asked = {i: r.params.logprobs for i, r in enumerate(requests) if r.params.logprobs is not None}
    if not asked:
        return None
    num_top = min(max(asked.values()), logits.shape[1])
    rows = torch.tensor(list(asked), device=logits.device)
    logprobs = logits[rows].float().log_softmax(-1)
    chosen = logprobs.gather(-1, token_ids[rows].clamp(min=0).unsqueeze(-1))
    rank = (logprobs > chosen).sum(-1, keepdim=True) + 1
    top = logprobs.topk(num_top, dim=-1)
    # float64 holds token ids exactly, so everything crosses to the host in one copy.
    packed = torch.cat([chosen.double(), rank.double(), top.indices.double(), top.values.double()], dim=-1)
    return PendingLogprobs(packed, asked)
