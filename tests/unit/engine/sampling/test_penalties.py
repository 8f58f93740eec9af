"""Penalties against a per-token reference, and the counts that they look up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.sampling import RowToBuild, allocate_counts, build_rows
from ostinato.engine.sampling.penalties import apply_penalties
from ostinato.engine.sampling.token_counts import MOST_COUNT, count_tokens
from ostinato.testing.sampling import sample, settings_for

VOCAB = 12


def reference(logits: list[float], request: Request) -> list[float]:
    result = list(logits)
    params, outputs = request.params, request.output_token_ids
    for token in set(request.prompt_token_ids) | set(outputs):
        factor = params.repetition_penalty
        result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
    for token in set(outputs):
        result[token] -= params.presence_penalty + params.frequency_penalty * outputs.count(token)
    return result


def counted(requests: list[Request], last_ids: list[int] | None = None) -> torch.Tensor:
    """The counts of requests, one row each; pending tokens lie in ``last_ids`` from row 1 on."""
    counts = allocate_counts(len(requests), VOCAB, torch.device("cpu")).fill_(77)
    rows = [RowToBuild(1 + i, r, r.num_pending_tokens and 1 + i) for i, r in enumerate(requests)]
    build_rows(counts, rows, torch.tensor([0, *(last_ids or [])]))
    assert (counts[0] == 77).all()
    return counts[1:]


def penalised(logits: torch.Tensor, requests: list[Request]) -> torch.Tensor:
    return apply_penalties(logits, settings_for(requests), counted(requests))


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=8)
params_strategy = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.8]),
    presence_penalty=st.sampled_from([0.0, -1.5, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 1.25]),
)
requests_strategy = st.builds(
    Request, request_id=st.just("r"), prompt_token_ids=tokens, output_token_ids=tokens, params=params_strategy
)


@settings(max_examples=100, deadline=None)
@given(st.lists(requests_strategy, min_size=1, max_size=5), st.integers(0, 999))
def test_penalties_follow_the_reference(requests: list[Request], seed: int) -> None:
    logits = torch.randn(len(requests), VOCAB, generator=torch.Generator().manual_seed(seed))
    got = penalised(logits, requests)
    for row, request in enumerate(requests):
        assert got[row].tolist() == pytest.approx(reference(logits[row].tolist(), request), abs=1e-5)


def test_a_ruled_out_token_stays_ruled_out() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = -torch.inf
    params = SamplingParams(repetition_penalty=0.5, presence_penalty=-2.0)
    request = Request(request_id="a", prompt_token_ids=[3], output_token_ids=[3], params=params)
    assert penalised(logits, [request])[0, 3] == -torch.inf


def test_ids_past_the_logits_are_not_counted_to_another_row() -> None:
    requests = [
        Request(request_id=name, prompt_token_ids=[0, VOCAB], output_token_ids=outputs)
        for name, outputs in (("a", [VOCAB + 2]), ("b", [1]))
    ]
    assert counted(requests).nonzero().tolist() == [[0, 0], [1, 0], [1, 1]]


def test_penalties_move_the_greedy_choice() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 5] = 2.0, 1.5
    params = SamplingParams(frequency_penalty=0.3)
    request = Request(request_id="a", prompt_token_ids=[4, 4, 4], params=params)
    chosen = []
    for _ in range(4):
        chosen += sample(logits, [request]).token_ids
        request.output_token_ids.append(chosen[-1])
    assert chosen == [4, 4, 5, 4]


# --- counts -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(tokens.filter(len), tokens)
def test_counting_token_by_token_is_building_at_once(prompt: list[int], outputs: list[int]) -> None:
    request = Request(request_id="r", prompt_token_ids=prompt)
    counts = counted([request])
    for token in outputs:
        count_tokens(counts, torch.tensor([0]), torch.tensor([token]))
        request.output_token_ids.append(token)
        assert torch.equal(counts, counted([request]))
    for token in range(VOCAB):
        assert counts[0, token] == 2 * outputs.count(token) + (token in prompt)


def test_pending_tokens_are_counted_where_there_are_some() -> None:
    requests = [
        Request(request_id=name, prompt_token_ids=[1], output_token_ids=[2], num_pending_tokens=pending)
        for name, pending in (("a", 1), ("b", 0), ("c", 1))
    ]
    counts = counted(requests, last_ids=[2, 5, -1])
    assert counts[:, 1:6].tolist() == [[1, 4, 0, 0, 0], [1, 2, 0, 0, 0], [1, 2, 0, 0, 0]]


def test_counts_end_where_int16_does_and_keep_the_prompt() -> None:
    request = Request(request_id="a", prompt_token_ids=[3], output_token_ids=[3] * 20_000 + [4] * 20_000)
    counts = counted([request])
    assert counts[0, 3:5].tolist() == [MOST_COUNT, MOST_COUNT - 1]
    for _ in range(2):
        count_tokens(counts, torch.tensor([0]), torch.tensor([3]))
        count_tokens(counts, torch.tensor([0]), torch.tensor([4]))
    assert counts[0, 3:5].tolist() == [MOST_COUNT, MOST_COUNT - 1]


def test_no_token_is_not_counted() -> None:
    counts = counted([Request(request_id="a", prompt_token_ids=[0])])
    before = counts.clone()
    count_tokens(counts, torch.tensor([0]), torch.tensor([-1]))
    assert torch.equal(counts, before)
