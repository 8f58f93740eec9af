"""Logits processors: callables of the caller that change one request's logits, row by row, on the device.

They see every token so far, so the loop reads a step's tokens before it samples the next for their request. One that
raises, or gives something other than logits, costs its own request its token and nobody else theirs. Called by the
executor, before `choose_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from ostinato.engine.request import Request
from ostinato.engine.step_errors import leaves_device_usable, with_cause
from ostinato.errors import EngineError

__all__ = ["apply_processors"]

_FIX: Final = "a processor takes (token ids, logits [vocab] float32) and returns logits of the same shape"


def apply_processors(logits: torch.Tensor, requests: Sequence[Request]) -> tuple[torch.Tensor, dict[str, EngineError]]:
    """Logits as the processors left them, and the errors of those that failed, by request id.

    Args:
        logits: [num_reqs, vocab], never written to.
        requests: row owners.

    Returns:
        [num_reqs, vocab]: float32 when a row has processors, all NaN in rows that failed; else ``logits`` itself.
    """
    rows = [i for i, request in enumerate(requests) if request.logits_processors]
    return _applied(logits, requests, rows) if rows else (logits, {})


@torch.no_grad()
def _applied(
    logits: torch.Tensor, requests: Sequence[Request], rows: Sequence[int]
) -> tuple[torch.Tensor, dict[str, EngineError]]:
    """`apply_processors` where ``rows`` have some. Apart, since the choice of tokens waits for this in every step."""
    errors: dict[str, EngineError] = {}
    result = logits.to(torch.float32, copy=True)
    for row in rows:
        request = requests[row]
        try:
            result[row] = _processed(result[row].clone(), request)
        except Exception as error:
            if not leaves_device_usable(error):
                raise
            failed = EngineError(
                f"a logits processor of request {request.request_id!r} failed: {type(error).__name__}: {error}",
                fix=_FIX,
                request=request.request_id,
                output_position=request.num_output_tokens,
            )
            errors[request.request_id] = with_cause(failed, error)
            result[row] = torch.nan
    return result, errors


def _processed(row: torch.Tensor, request: Request) -> torch.Tensor:
    assert not request.num_pending_tokens, "the loop reads a request's tokens before its processors run"
    for process in request.logits_processors:
        changed = process(request.all_token_ids, row)
        if not isinstance(changed, torch.Tensor):
            raise TypeError(f"{type(changed).__name__} is no tensor")
        if changed.shape != row.shape or not changed.is_floating_point():
            expected, got = f"{list(row.shape)} of floats", f"{list(changed.shape)} {changed.dtype}"
            raise ValueError(f"expected {expected}, got {got}")
        row = changed
    return row
