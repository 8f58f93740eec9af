"""Penalties against a per-token reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.sampling import sample
from ostinato.engine.sampling.penalties import apply_penalties

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
    got = apply_penalties(logits, requests)
    for row, request in enumerate(requests):
        assert got[row].tolist() == pytest.approx(reference(logits[row].tolist(), request), abs=1e-5)


def test_rows_without_penalties_are_passed_through() -> None:
    logits = torch.randn(2, VOCAB).bfloat16()
    plain = Request(request_id="a", prompt_token_ids=[1], output_token_ids=[2])
    assert apply_penalties(logits, [plain, plain]) is logits
    params = SamplingParams(presence_penalty=1.0)
    penalised = Request(request_id="b", prompt_token_ids=[1], output_token_ids=[2], params=params)
    got = apply_penalties(logits, [plain, penalised])
    assert got.dtype == torch.float32
    assert torch.equal(got[0], logits[0].float())
    assert got[1, 2] == logits[1, 2].float() - 1


def test_a_ruled_out_token_stays_ruled_out() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = -torch.inf
    params = SamplingParams(repetition_penalty=0.5, presence_penalty=-2.0)
    request = Request(request_id="a", prompt_token_ids=[3], output_token_ids=[3], params=params)
    assert apply_penalties(logits, [request])[0, 3] == -torch.inf


def test_ids_past_the_logits_are_not_counted_to_another_row() -> None:
    params = SamplingParams(presence_penalty=1.0)
    requests = [
        Request(request_id=name, prompt_token_ids=[0], output_token_ids=outputs, params=params)
        for name, outputs in (("a", [VOCAB + 2]), ("b", [1]))
    ]
    got = apply_penalties(torch.zeros(2, VOCAB), requests)
    assert got.nonzero().tolist() == [[1, 1]]


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
