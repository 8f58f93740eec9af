"""`PendingSample`: the tokens of a launched step on their way to the host.

They are chosen by the step itself (`choose_tokens`); here they are copied, and the log-probabilities beside them
worked out where somebody asks. Nothing waits for the device until `read`, so the next step may be launched from the
token ids while they are still there. Appending tokens is the scheduler's job. Called by the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.engine.request import Request, TokenLogprobs
from ostinato.engine.sampling.greedy import NO_TOKEN
from ostinato.engine.sampling.host_copy import CopyRing
from ostinato.engine.sampling.logprobs import PendingLogprobs, start_logprobs
from ostinato.errors import EngineError

__all__ = ["PendingSample", "SampleResult"]


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """One entry per request, in the order given.

    Attributes:
        chosen: [num_reqs] the chosen tokens; -1 for a request in `errors`.
        logprobs: None where not asked for.
        errors: request id -> why it has no token. The loop ends these requests; the others go on.
    """

    chosen: NDArray[np.int64]
    logprobs: list[TokenLogprobs | None]
    errors: dict[str, EngineError] = field(default_factory=dict)

    @property
    def token_ids(self) -> list[int]:
        """``chosen`` as a new list."""
        token_ids: list[int] = self.chosen.tolist()
        return token_ids


class PendingSample:
    """Tokens that are chosen, or will be once the device gets there.

    Args:
        token_ids: [num_reqs] int64, on any device; -1 for a row without a token.
        logits: [num_reqs, vocab], any float dtype: the model's own. Read now, never written.
        requests: row owners. Only their params and token ids are read; nothing is changed.
        errors: request id -> why it has no token, where that is known already.
        is_plain: nobody asks for log-probabilities, as the caller knows without a look at each.
        ring: memory for the tokens, of whoever reads many in turn.

    Raises:
        EngineError: the logits or the tokens do not match the requests.
    """

    def __init__(
        self,
        token_ids: torch.Tensor,
        logits: torch.Tensor,
        requests: Sequence[Request],
        errors: Mapping[str, EngineError] | None = None,
        *,
        is_plain: bool = False,
        ring: CopyRing | None = None,
    ) -> None:
        self._ring = CopyRing() if ring is None else ring
        self._copy = self._ring.start(token_ids)  # first of all: a device that has nothing else to do waits for it
        num_reqs = len(requests)
        if logits.ndim != 2 or logits.shape[0] != num_reqs or token_ids.shape != (num_reqs,):
            expected, got = f"[{num_reqs}, vocab] and [{num_reqs}]", f"{list(logits.shape)} and {list(token_ids.shape)}"
            raise EngineError("logits and tokens do not match the requests", expected=expected, got=got)
        self._logprobs: PendingLogprobs | None = None
        if not is_plain:
            with torch.no_grad():
                self._logprobs = start_logprobs(logits, token_ids, requests)
        self._requests = requests
        self._errors = errors or {}

    def read(self) -> SampleResult:
        """The tokens, waiting for the device if need be; again, if asked again. A request without one is in
        ``errors``."""
        chosen: NDArray[np.int64] = self._copy.read().numpy().copy()
        errors: dict[str, EngineError] = {}
        for row in (chosen == NO_TOKEN).nonzero()[0].tolist():
            request = self._requests[row]
            errors[request.request_id] = self._errors.get(request.request_id) or _not_finite(request)
        logprobs: list[TokenLogprobs | None] = [None] * len(chosen)
        if self._logprobs is not None:
            logprobs = self._logprobs.read(chosen.tolist())
        return SampleResult(chosen=chosen, logprobs=logprobs, errors=errors)

    def release(self) -> None:
        """Let the ring have the memory; call it once at most, when the tokens are read and will not be again."""
        self._ring.give_back(self._copy)


def _not_finite(request: Request) -> EngineError:
    return EngineError(
        f"the logits of request {request.request_id!r} are not finite",
        fix="check the weights and the dtype (float16 overflows where bfloat16 does not)",
        request=request.request_id,
        output_position=len(request.output_token_ids),
    )
