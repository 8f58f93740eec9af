"""The sampling kernel's logic against `choose_tokens`; `test_interpreted_kernels.py` runs this file.

On one device exp is nearly that of the other form, so a token may differ only where the random number falls on the
border of two tokens; none here does.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.engine.layers.triton import sample
from ostinato.engine.request import SamplingParams
from ostinato.engine.sampling import NUM_SETTINGS, Setting, choose_greedy, choose_tokens, mass_bits
from ostinato.engine.sampling.settings import settings_of
from ostinato.engine.sampling.token_counts import MOST_COUNT

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_interpreted_kernels.py instead"

VOCAB = 700  # of the small blocks below, the last one is not full
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1e-7},
    {"temperature": 1e30},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.5, "top_k": 7},
    {"temperature": 1.0, "top_k": VOCAB},
    {"temperature": 1.0, "top_k": VOCAB - 1},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 3.0, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.8, "min_p": 0.01},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5, "frequency_penalty": 0.4},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "repetition_penalty": 0.8, "frequency_penalty": -0.2},
]


@pytest.fixture(autouse=True, params=[256, 64], ids=["wide", "narrow"])
def _small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows have several; in narrow ones a lane meets more scores than it keeps."""
    monkeypatch.setattr(sample, "_BLOCK", request.param)


def rows_for(settings: list[dict[str, Any]], uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    params = [SamplingParams(**each) for each in settings]
    rows = torch.tensor([settings_of(each) for each in params], dtype=torch.float64)
    rows[:, Setting.UNIFORM] = uniforms
    owners = torch.tensor([i + 1 if each.has_penalties else 0 for i, each in enumerate(params)])
    return rows, owners


def check(logits: torch.Tensor, settings: torch.Tensor, owners: torch.Tensor, counts: torch.Tensor) -> list[int]:
    """The kernel's tokens, which must be those of the torch form, as must the counts."""
    expected, got = torch.full((2, len(logits)), 99)
    expected_counts, got_counts = counts.clone(), counts.clone()
    choose_tokens(logits, settings, owners, expected_counts, expected)
    choose_greedy(logits, got)
    sample.launch_sample(logits, settings, owners, got_counts, got)
    assert got.tolist() == expected.tolist()
    assert torch.equal(got_counts, expected_counts)
    return got.tolist()


def some_counts(num_rows: int, random: torch.Generator, vocab: int = VOCAB) -> torch.Tensor:
    counts = torch.randint(0, 6, (num_rows + 1, vocab), generator=random, dtype=torch.int16)
    return counts * (torch.rand(counts.shape, generator=random) < 0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed_rows(dtype: torch.dtype, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    num_rows = len(SETTINGS)
    # bfloat16 values of one row repeat: ties everywhere, at the limits too.
    logits = (torch.randn(num_rows, VOCAB, generator=random) * 3).to(dtype)
    logits[:, 5], logits[:, VOCAB - 1] = -math.inf, logits[:, 17]
    uniforms = torch.rand(num_rows, dtype=torch.float64, generator=random)
    settings, owners = rows_for(SETTINGS, uniforms)
    counts = some_counts(num_rows, random)
    tokens = check(logits, settings, owners, counts)
    assert 5 not in tokens
    for row in (0, 2, 4):  # greedy, nearly greedy, and top_k=1: of the likeliest, of which there may be several
        assert logits[row, tokens[row]] == logits[row].max()


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 2.0**-53])
def test_ties_and_the_ends_of_the_unit_interval(uniform: float) -> None:
    """All tokens equal: nothing can be told apart, so nothing is cut off, and the number says which it is."""
    logits = torch.zeros(len(SETTINGS), VOCAB)
    settings, owners = rows_for(SETTINGS, torch.full((len(SETTINGS),), uniform, dtype=torch.float64))
    counts = torch.zeros(len(SETTINGS) + 1, VOCAB, dtype=torch.int16)
    tokens = check(logits, settings, owners, counts)
    drawn = [token for token, each in zip(tokens, SETTINGS, strict=True) if "temperature" in each]
    assert set(drawn) == {int(uniform * VOCAB)}


def test_few_tokens_are_left() -> None:
    logits = torch.full((3, VOCAB), -math.inf)
    logits[0, 600], logits[1, [3, 690]], logits[2, 0] = 1.0, torch.tensor([2.0, 2.0]), -50.0
    limited = {"temperature": 1.0, "top_k": 5, "top_p": 0.99}
    for uniform, tied in ((0.49, 3), (0.51, 690)):
        settings, owners = rows_for([limited] * 3, torch.full((3,), uniform, dtype=torch.float64))
        assert check(logits, settings, owners, torch.zeros(1, VOCAB, dtype=torch.int16)) == [600, tied, 0]


def test_tokens_too_unlikely_to_weigh_anything() -> None:
    logits = torch.zeros(4, VOCAB) - 500.0
    logits[:, 9], logits[:, 20:40] = 0.0, -60.0
    limits: list[dict[str, Any]] = [{}, {"top_k": 3}, {"top_p": 0.999999}, {"top_k": 25, "top_p": 0.5}]
    kinds = [{"temperature": 1.0, **limit} for limit in limits]
    settings, owners = rows_for(kinds, torch.full((4,), 1 - 2.0**-53, dtype=torch.float64))
    assert check(logits, settings, owners, torch.zeros(1, VOCAB, dtype=torch.int16)) == [9] * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_has_no_token_and_harms_no_other(bad: float) -> None:
    random = torch.Generator().manual_seed(3)
    drawn, penalised = {"temperature": 1.0, "top_p": 0.9}, {"presence_penalty": 1.0}
    kinds = [each for each in ({}, drawn, penalised, drawn | penalised) for _ in range(2)]
    logits = torch.randn(8, VOCAB, generator=random)
    settings, owners = rows_for(kinds, torch.rand(8, dtype=torch.float64, generator=random))
    counts = some_counts(8, random)
    healthy = check(logits, settings, owners, counts)
    for row in range(0, 8, 2):
        logits[row, 300 if bad != -math.inf else slice(None)] = bad
    tokens = check(logits, settings, owners, counts)
    assert tokens == [-1 if row % 2 == 0 else healthy[row] for row in range(8)]


def test_counts_end_where_int16_does() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 4] = 30.0
    settings, owners = rows_for([{"presence_penalty": 0.1}] * 2, torch.zeros(2, dtype=torch.float64))
    counts = torch.zeros(3, VOCAB, dtype=torch.int16)
    counts[1, 4], counts[2, 4] = MOST_COUNT, MOST_COUNT - 1
    assert check(logits, settings, owners, counts) == [4, 4]


@pytest.mark.parametrize("poison", [math.nan, 1e30])
def test_poisoned_settings_give_some_token_or_none(poison: float) -> None:
    """Of padded rows, while graphs are qualified: no such row may run away or write elsewhere."""
    logits = torch.randn(2, VOCAB)
    settings = torch.full((2, NUM_SETTINGS), poison, dtype=torch.float64)
    got = torch.empty(2, dtype=torch.int64)
    counts = torch.zeros(3, VOCAB, dtype=torch.int16)
    for choose in (choose_tokens, sample.launch_sample):
        choose_greedy(logits, got)
        choose(logits, settings, torch.zeros(2, dtype=torch.int64), counts, got)
        assert all(-1 <= token < VOCAB for token in got.tolist()) and not counts.any()


def test_draws_follow_the_distribution() -> None:
    """Evenly spaced numbers: shares are exact to one draw in each token."""
    random = torch.Generator().manual_seed(5)
    logits = torch.randn(1, 40, generator=random).expand(50, -1).contiguous()
    params = SamplingParams(temperature=1.2, top_k=12, top_p=0.9)
    uniforms = (torch.arange(50, dtype=torch.float64) + 0.5) / 50
    settings, owners = rows_for([{"temperature": 1.2, "top_k": 12, "top_p": 0.9}] * 50, uniforms)
    tokens = check(logits, settings, owners, torch.zeros(1, 40, dtype=torch.int16))
    weights = (logits[0].double() / params.temperature).exp()
    order = weights.argsort(descending=True)[: params.top_k]
    shares = weights[order] / weights[order].sum()
    kept = order[: int((shares.cumsum(0) < params.top_p).sum()) + 1]
    for token in range(40):
        share = float(weights[token] / weights[kept].sum()) if token in kept else 0.0
        assert abs(tokens.count(token) / 50 - share) <= 1 / 50


def test_masses_stay_below_the_limit_of_int64() -> None:
    for vocab in (2, 700, 2**17, 2**18, 262_145, 2**20):
        assert vocab * 2 ** mass_bits(vocab) < 2**63
    assert mass_bits(2**18) == 44
    assert np.float32(2.0 ** mass_bits(2**20)) == 2.0 ** mass_bits(2**20)
