"""Tokens for logits that no engine has made: what a step does with them, for requests as they stand.

Settings and counts are worked out anew at each call from what the requests hold, so nothing is kept between two. For
tests, and for `ScriptedExecutor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ostinato.engine.request import Request
from ostinato.engine.sampling import (
    NUM_SETTINGS,
    PendingSample,
    RowToBuild,
    SampleResult,
    SettingsTable,
    allocate_counts,
    apply_processors,
    build_rows,
    choose_tokens,
)
from ostinato.errors import EngineError

__all__ = ["ChosenTokens", "choose_for", "sample", "settings_for"]


@dataclass(frozen=True)
class ChosenTokens:
    """A `LaunchedStep`."""

    logits: torch.Tensor
    token_ids: torch.Tensor
    errors: Mapping[str, EngineError]
    labels: tuple[str, str, str] | None = None


def settings_for(requests: Sequence[Request], generator: torch.Generator | None = None) -> torch.Tensor:
    """[num_reqs, NUM_SETTINGS] float64: the settings of the next token of each request."""
    rows, settings = np.arange(len(requests)), np.zeros((len(requests), NUM_SETTINGS))
    table = SettingsTable(len(requests), generator)
    for row, request in enumerate(requests):
        table.enter(row, request.params)
    table.fill(settings, rows, rows, np.array([request.num_output_tokens for request in requests], dtype=np.int64))
    return torch.from_numpy(settings)


def choose_for(
    logits: torch.Tensor, requests: Sequence[Request], *, generator: torch.Generator | None = None
) -> ChosenTokens:
    """The next token of each request. A pending token is not counted by penalties: only the device knows it.

    Args:
        logits: [num_reqs, vocab] on the CPU; row i belongs to ``requests[i]``. Never written to.
        requests: whose tokens; nothing is changed.
        generator: CPU generator for requests without a seed; None is torch's default one.
    """
    token_ids = torch.empty(len(requests), dtype=torch.int64)
    if not requests:
        return ChosenTokens(logits, token_ids, {})
    scores, errors = apply_processors(logits, requests)
    has_penalties = torch.tensor([request.params.has_penalties for request in requests])
    count_rows = torch.where(has_penalties, torch.arange(1, len(requests) + 1), 0)
    counts = allocate_counts(len(requests), logits.shape[1], logits.device)
    rows = [RowToBuild(row, r, 0) for row, r in zip(count_rows.tolist(), requests, strict=True) if row]
    if rows:
        build_rows(counts, rows, token_ids)
    choose_tokens(scores, settings_for(requests, generator), count_rows, counts, token_ids)
    return ChosenTokens(logits, token_ids, errors)


def sample(
    logits: torch.Tensor, requests: Sequence[Request], *, generator: torch.Generator | None = None
) -> SampleResult:
    """`choose_for`, read."""
    chosen = choose_for(logits, requests, generator=generator)
    return PendingSample(chosen.token_ids, chosen.logits, requests, chosen.errors).read()
