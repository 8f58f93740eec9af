"""Rows of settings: extremes that any request may ask for, and whose rows they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.sampling.settings import NUM_SETTINGS, Setting, SettingsTable, settings_of
from ostinato.testing.sampling import sample


def test_columns() -> None:
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.3}
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, **penalties)
    row = settings_of(params)
    assert len(row) == NUM_SETTINGS == len(Setting)
    assert row == (2.0, 3.0, 0.9, math.log(0.1), 1.1, 0.2, -0.3, 0.0)


def test_a_row_of_zeros_is_greedy() -> None:
    assert settings_of(SamplingParams())[Setting.INVERSE_TEMPERATURE] == 0


@pytest.mark.parametrize(
    "extreme",
    [{"top_k": 10**400}, {"temperature": 1e300}, {"temperature": 5e-324}, {"min_p": 5e-324}, {"top_p": 5e-324}],
    ids=str,
)
def test_extremes_give_a_token(extreme: dict[str, Any]) -> None:
    request = Request(request_id="a", prompt_token_ids=[0], params=SamplingParams(**{"temperature": 1.0, **extreme}))
    result = sample(torch.tensor([[0.0, -math.inf, 3.0]]), [request])
    assert result.token_ids[0] in (0, 2) and not result.errors


def test_rows_are_filled_where_they_are_asked_for() -> None:
    table, target = SettingsTable(4, None), np.full((3, NUM_SETTINGS), 77.0)
    table.enter(3, SamplingParams(temperature=1.0, seed=1))
    table.enter(0, SamplingParams(presence_penalty=1.0))
    table.enter(3, SamplingParams(temperature=0.25, seed=2))  # another request's now
    table.fill(target, np.array([2, 0]), np.array([3, 0]), np.array([5, 9]))
    assert target[1].tolist() == [77.0] * NUM_SETTINGS
    assert (target[2, Setting.INVERSE_TEMPERATURE], target[0, Setting.PRESENCE]) == (4.0, 1.0)
    assert 0 < target[2, Setting.UNIFORM] < 1 and target[0, Setting.UNIFORM] == 0
