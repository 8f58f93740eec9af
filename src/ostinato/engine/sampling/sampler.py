"""Chooses the next token of every request in a step.

Every operation works on rows, so a request's token depends on its own logits, settings and seed and
never on who shares the batch; a row of NaN harms no other. Logits are read, never written: they may be
a graph's static output. Nothing here waits for the device until `PendingSample.read`, so the next step may
be launched from the token ids while they are still there. Appending tokens is the scheduler's job. Called by
the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ostinato.engine.request import Request, TokenLogprobs
from ostinato.engine.sampling.draw import draw_tokens
from ostinato.engine.sampling.greedy import NO_TOKEN, choose_greedy
from ostinato.engine.sampling.host_copy import HostCopy
from ostinato.engine.sampling.logprobs import PendingLogprobs, start_logprobs
from ostinato.engine.sampling.penalties import apply_penalties
from ostinato.engine.sampling.processors import apply_processors
from ostinato.engine.sampling.uniforms import uniforms_for
from ostinato.errors import EngineError

__all__ = ["PendingSample", "SampleResult", "sample", "start_sampling"]


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


class PendingSample:
    """Tokens that are chosen, or will be once the device gets there.

    Args:
        token_ids: [num_reqs] int64, on any device.
        logprobs: what was asked for beside them.
        requests: row owners.
        errors: request id -> why it has no token, where that is known already.
    """

    def __init__(
        self,
        token_ids: torch.Tensor,
        logprobs: PendingLogprobs | None,
        requests: Sequence[Request],
        errors: Mapping[str, EngineError] | None = None,
    ) -> None:
        self._copy = HostCopy(token_ids)
        self._logprobs = logprobs
        self._requests = requests
        self._errors = errors or {}

    def read(self) -> SampleResult:
        """The tokens, waiting for the device if need be. A request without one is in ``errors``."""
        token_ids: list[int] = self._copy.read().tolist()
        errors = {
            request.request_id: self._errors.get(request.request_id) or _not_finite(request)
            for request, token_id in zip(self._requests, token_ids, strict=True)
            if token_id == NO_TOKEN
        }
        logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
        if self._logprobs is not None:
            logprobs = self._logprobs.read(token_ids)
        return SampleResult(token_ids=token_ids, logprobs=logprobs, errors=errors)


@torch.no_grad()
def start_sampling(
    logits: torch.Tensor,
    requests: Sequence[Request],
    *,
    greedy: torch.Tensor | None = None,
    newest: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> PendingSample:
    """Choose one token per request, on the device of the logits.

    Args:
        logits: [num_reqs, vocab], any float dtype, any device; row i belongs to ``requests[i]``.
        requests: who is sampled. Only their params and token ids are read; nothing is changed.
        greedy: [num_reqs] int64, what `choose_greedy` gives for the logits, if that is known; rows that are sampled
            otherwise are overwritten, so that it holds the choice of every row afterwards.
        newest: [num_reqs] int64, the pending token of each request that has one; needed with penalties.
        generator: CPU generator for requests without a seed; None is torch's default one.

    Raises:
        EngineError: the shape of the logits does not match the requests.
    """
    if logits.ndim != 2 or logits.shape[0] != len(requests) or logits.shape[1] == 0:
        expected, got = f"[{len(requests)}, vocab]", list(logits.shape)
        raise EngineError("logits do not match the requests", expected=expected, got=got)
    if greedy is None:
        greedy = torch.empty(len(requests), dtype=torch.int64, device=logits.device)
        choose_greedy(logits, greedy)
    if all(request.is_plain for request in requests):
        return PendingSample(greedy, None, requests)
    processed, errors = apply_processors(logits, requests)
    scores = apply_penalties(processed, requests, newest)
    if scores is not logits:
        choose_greedy(scores, greedy)
    random_rows = [i for i, request in enumerate(requests) if not request.params.is_greedy]
    if random_rows:
        rows = torch.tensor(random_rows, device=logits.device)
        drawn_for = [requests[i] for i in random_rows]
        uniforms = uniforms_for(drawn_for, generator)
        drawn = draw_tokens(scores[rows].float(), [r.params for r in drawn_for], uniforms)
        greedy[rows] = torch.where(greedy[rows] == NO_TOKEN, NO_TOKEN, drawn)
    return PendingSample(greedy, start_logprobs(logits, greedy, requests), requests, errors)


def sample(
    logits: torch.Tensor, requests: Sequence[Request], *, generator: torch.Generator | None = None
) -> SampleResult:
    """`start_sampling`, and wait for the result."""
    return start_sampling(logits, requests, generator=generator).read()


def _not_finite(request: Request) -> EngineError:
    return EngineError(
        f"the logits of request {request.request_id!r} are not finite",
        fix="check the weights and the dtype (float16 overflows where bfloat16 does not)",
        request=request.request_id,
        output_position=len(request.output_token_ids),
    )
