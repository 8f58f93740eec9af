"""Log-probabilities of the chosen token and of the most likely ones.

From the model's own logits, before penalties, temperature and filters: what the model thought, not
what the settings made of it. Free when nobody asks; else one copy to the host. Called by the sampler.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostinato.engine.request import Request, TokenLogprobs

__all__ = ["collect_logprobs"]


def collect_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], requests: Sequence[Request]
) -> list[TokenLogprobs | None]:
    """Log-probabilities for the rows whose request asks for them.

    Args:
        logits: [num_reqs, vocab], any float dtype.
        token_ids: the chosen tokens; rows with a negative one are skipped.
        requests: row owners; ``params.logprobs`` says how many of the most likely tokens.

    Returns:
        One entry per row; None where not asked for or without a token.
    """
    result: list[TokenLogprobs | None] = [None] * len(requests)
    asked = {
        i: r.params.logprobs for i, r in enumerate(requests) if r.params.logprobs is not None and token_ids[i] >= 0
    }
    if not asked:
        return result
    device, num_top = logits.device, min(max(asked.values()), logits.shape[1])
    index = torch.tensor([[i, token_ids[i]] for i in asked], device=device)
    logprobs = logits[index[:, 0]].float().log_softmax(-1)
    chosen = logprobs.gather(-1, index[:, 1:])
    rank = (logprobs > chosen).sum(-1, keepdim=True) + 1
    top = logprobs.topk(num_top, dim=-1)
    # float64 holds token ids exactly, so everything crosses to the host in one copy.
    columns = [chosen.double(), rank.double(), top.indices.double(), top.values.double()]
    packed = torch.cat(columns, dim=-1).tolist()
    for (row, num_asked), (logprob, place, *rest) in zip(asked.items(), packed, strict=True):
        ids, values = rest[:num_top][:num_asked], rest[num_top:][:num_asked]
        result[row] = TokenLogprobs(
            token_id=token_ids[row],
            logprob=logprob,
            rank=int(place),
            top=tuple((int(i), value) for i, value in zip(ids, values, strict=True)),
        )
    return result
