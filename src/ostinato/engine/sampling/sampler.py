"""Chooses the next token of every request in a step.

Every operation works on rows, so a request's token depends on its own logits, settings and seed and
never on who shares the batch; a row of NaN harms no other. Logits are read, never written: they may be
a graph's static output. Appending the tokens is the scheduler's job. Called by the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from ostinato.engine.request import Request, TokenLogprobs
from ostinato.engine.sampling.draw import draw_tokens
from ostinato.engine.sampling.logprobs import collect_logprobs
from ostinato.engine.sampling.penalties import apply_penalties
from ostinato.engine.sampling.uniforms import uniforms_for
from ostinato.errors import EngineError

__all__ = ["SampleResult", "sample"]

_NO_TOKEN: Final = -1  # never leaves as a choice: the request is in `errors`


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """One entry per request, in the order given.

    Attributes:
        token_ids: the chosen tokens; -1 for a request in `errors`.
        logprobs: None where not asked for.
        errors: request id -> why it has no token. The loop ends these requests; the others go on.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[str, EngineError] = field(default_factory=dict)


@torch.no_grad()
def sample(
    logits: torch.Tensor, requests: Sequence[Request], *, generator: torch.Generator | None = None
) -> SampleResult:
    """Choose one token per request.

    Args:
        logits: [num_reqs, vocab], any float dtype, any device; row i belongs to ``requests[i]``.
        requests: who is sampled. Only their params and token ids are read; nothing is changed.
        generator: CPU generator for requests without a seed; None is torch's default one.

    Returns:
        Tokens, log-probabilities and per-request errors. A row whose largest logit is not finite (a NaN, an
        infinity, or every token ruled out) gives an error for that request alone.

    Raises:
        EngineError: the shape of the logits does not match the requests.
    """
    if logits.ndim != 2 or logits.shape[0] != len(requests) or logits.shape[1] == 0:
        expected, got = f"[{len(requests)}, vocab]", list(logits.shape)
        raise EngineError("logits do not match the requests", expected=expected, got=got)
    if not requests:
        return SampleResult(token_ids=[], logprobs=[])
    token_ids = _choose(logits, requests, generator)
    errors = {
        request.request_id: _not_finite(request)
        for request, token_id in zip(requests, token_ids, strict=True)
        if token_id == _NO_TOKEN
    }
    return SampleResult(token_ids=token_ids, logprobs=collect_logprobs(logits, token_ids, requests), errors=errors)


def _choose(logits: torch.Tensor, requests: Sequence[Request], generator: torch.Generator | None) -> list[int]:
    scores = apply_penalties(logits, requests)
    # max and argmax pass NaN on, so one look at the largest value judges the whole row.
    largest, tokens = scores.max(dim=-1)
    random_rows = [i for i, request in enumerate(requests) if not request.params.is_greedy]
    if random_rows:
        rows = torch.tensor(random_rows, device=logits.device)
        drawn_for = [requests[i] for i in random_rows]
        uniforms = uniforms_for(drawn_for, generator)
        tokens[rows] = draw_tokens(scores[rows].float(), [r.params for r in drawn_for], uniforms)
    picked: list[int] = torch.where(largest.isfinite(), tokens, _NO_TOKEN).tolist()  # the one copy to the host
    return picked


def _not_finite(request: Request) -> EngineError:
    return EngineError(
        f"the logits of request {request.request_id!r} are not finite",
        fix="check the weights and the dtype (float16 overflows where bfloat16 does not)",
        request=request.request_id,
        output_position=len(request.output_token_ids),
    )
