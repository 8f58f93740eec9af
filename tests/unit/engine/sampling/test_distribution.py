"""Filters and draws against a straightforward reference, one row at a time in Python floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.sampling import draw
from ostinato.engine.sampling.draw import draw_tokens
from ostinato.engine.sampling.filters import keep_thresholds
from ostinato.engine.sampling.settings import Setting, settings_of
from ostinato.testing.sampling import sample


def rows_of(params: Sequence[SamplingParams], uniforms: Sequence[float] | None = None) -> torch.Tensor:
    """Settings, with these random numbers."""
    settings = torch.tensor([settings_of(each) for each in params], dtype=torch.float64)
    if uniforms is not None:
        settings[:, Setting.UNIFORM] = torch.tensor(uniforms, dtype=torch.float64)
    return settings


def reference(logits: list[float], params: SamplingParams) -> list[float]:
    """Probability of each token after temperature, top-k, top-p and min-p; tokens tied at a limit stay."""
    scaled = [x / params.temperature for x in logits]
    top = max(scaled)
    weights = [math.exp(x - top) for x in scaled]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    kept = order[: params.top_k or len(order)]
    total = sum(weights[i] for i in kept)
    nucleus, mass = [], 0.0
    for i in kept:
        if params.top_p < 1 and mass >= params.top_p * total:
            break
        nucleus.append(i)
        mass += weights[i]
    floor = max(min(weights[i] for i in nucleus), params.min_p * max(weights))
    weights = [w if w >= floor else 0.0 for w in weights]
    return [w / sum(weights) for w in weights]


def histogram(logits: torch.Tensor, params: SamplingParams, num_draws: int) -> list[float]:
    """Shares of tokens drawn at evenly spaced numbers: exact to 1 / num_draws per token."""
    rows = logits.expand(num_draws, -1)
    uniforms = [(i + 0.5) / num_draws for i in range(num_draws)]
    drawn = draw_tokens(rows, rows_of([params] * num_draws, uniforms))
    shares: list[float] = (drawn.bincount(minlength=logits.shape[-1]) / num_draws).tolist()
    return shares


CASES: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.0, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.5, "top_k": 8, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 12, "top_p": 0.95, "min_p": 0.2},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_follow_the_reference(case: dict[str, Any]) -> None:
    params = SamplingParams(**case)
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(4)) * 2
    expected = reference(logits[0].tolist(), params)
    got = histogram(logits, params, 2000)
    assert got == pytest.approx(expected, abs=1.01 / 2000)
    assert all(e > 0 for g, e in zip(got, expected, strict=True) if g > 0)


row_strategy = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.5, 1.0, 2.0]),
        "top_k": st.integers(0, 14),
        # No share of these small integer weights comes near such limits, so float rounding decides nothing.
        "top_p": st.sampled_from([1.0, 0.913427, 0.637113, 0.311371]),
        "min_p": st.sampled_from([0.0, 0.0311, 0.271]),
    }
)
logits_strategy = st.lists(st.integers(-6, 6), min_size=12, max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(row_strategy, logits_strategy), min_size=1, max_size=6))
def test_mixed_rows_keep_what_each_alone_would_keep(rows: list[tuple[dict[str, Any], list[int]]]) -> None:
    params = [SamplingParams(**row) for row, _ in rows]
    logits = torch.tensor([values for _, values in rows], dtype=torch.float32)
    temperature = torch.tensor([[p.temperature] for p in params])
    scores = (logits - logits.max(-1, keepdim=True).values) / temperature
    kept = scores >= keep_thresholds(scores, rows_of(params))
    for row, (param, (_, values)) in enumerate(zip(params, rows, strict=True)):
        expected = [probability > 0 for probability in reference([float(v) for v in values], param)]
        assert kept[row].tolist() == expected


def test_tokens_tied_at_the_limit_are_all_kept() -> None:
    scores = torch.tensor([[0.0, -1.0, -1.0, -1.0, -2.0]])
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.6)):
        threshold = keep_thresholds(scores, rows_of([params]))
        assert (scores >= threshold).tolist() == [[True, True, True, True, False]]


def test_ruled_out_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    for case in CASES:
        got = histogram(logits, SamplingParams(**case), 100)
        assert got[0] == got[2] == got[4] == 0


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53, 1.0])
def test_the_ends_of_the_unit_interval_give_a_kept_token(uniform: float) -> None:
    logits = torch.randn(1, 4099, generator=torch.Generator().manual_seed(0)) * 4
    params = SamplingParams(temperature=1.0, top_k=10)
    token = draw_tokens(logits, rows_of([params], [uniform])).item()
    assert token in logits[0].topk(10).indices.tolist()


def test_numbers_map_to_tokens_in_vocabulary_order() -> None:
    """Each token owns a half-open interval, and a ruled-out one owns nothing, not even its end."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.5, 0.0]])
    params = SamplingParams(temperature=1.0, min_p=0.1)
    assert draw_tokens(logits, rows_of([params], [0.0])).item() == 1
    even = torch.tensor([[0.0, 0.0, -math.inf, 0.0, 0.0]])
    assert [draw_tokens(even, rows_of([params], [i / 4])).item() for i in range(4)] == [0, 1, 3, 4]


def test_top_k_keeps_tokens_too_unlikely_to_show_in_a_sum() -> None:
    scores = torch.tensor([[0.0, -50.0, -60.0, -70.0]])
    assert (scores >= keep_thresholds(scores, rows_of([SamplingParams(top_k=3)]))).tolist() == [
        [True, True, True, False]
    ]


def test_a_tiny_temperature_still_splits_ties() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0]])
    for temperature in (5e-324, 1e-30, 1e-6):
        params = SamplingParams(temperature=temperature)
        assert [draw_tokens(logits, rows_of([params], [u])).item() for u in (0.25, 0.75)] == [1, 2]


def test_blocks_of_rows_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 30, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature=1.0, top_k=i, top_p=1 - i / 20) for i in range(7)]
    uniforms = [i / 7 for i in range(7)]
    whole = draw_tokens(logits, rows_of(params, uniforms)).tolist()
    for elements in (1, 60, 90):
        monkeypatch.setattr(draw, "_BLOCK_ELEMENTS", elements)
        assert draw_tokens(logits, rows_of(params, uniforms)).tolist() == whole


def chi_square(counts: list[int], expected: list[float]) -> float:
    return sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))


@pytest.mark.parametrize("axis", ["seeds", "positions", "unseeded"])
def test_samples_are_distributed_as_asked(axis: str) -> None:
    """8 tokens, 7 degrees of freedom: chi-square above 24.3 has probability 0.001. Seeds are fixed."""
    num_draws = 4000
    logits = torch.linspace(-1, 1, 8).unsqueeze(0)
    requests = [
        Request(
            request_id=str(i),
            prompt_token_ids=[0],
            output_token_ids=[0] * i if axis == "positions" else [],
            params=SamplingParams(temperature=0.8, seed={"seeds": i, "positions": 42, "unseeded": None}[axis]),
        )
        for i in range(num_draws)
    ]
    tokens = sample(logits.expand(num_draws, -1), requests, generator=torch.Generator().manual_seed(3)).token_ids
    expected = [p * num_draws for p in reference(logits[0].tolist(), requests[0].params)]
    counts = [tokens.count(t) for t in range(8)]
    assert chi_square(counts, expected) < 24.3
    # Neighbouring seeds or positions are independent: equal neighbours occur as often as chance has it.
    chance = sum((e / num_draws) ** 2 for e in expected)
    equal = sum(a == b for a, b in itertools.pairwise(tokens))
    spread = math.sqrt(num_draws * chance * (1 - chance))
    assert abs(equal - num_draws * chance) < 4 * spread
