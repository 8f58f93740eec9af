"""Log-probabilities: values, ranks, order, and whose logits they come from."""

from __future__ import annotations

import math

import pytest
import torch

from ostinato.engine.request import Request, SamplingParams
from ostinato.testing.sampling import sample


def make(name: str, **params: object) -> Request:
    return Request(request_id=name, prompt_token_ids=[0], params=SamplingParams(**params))  # type: ignore[arg-type]


def test_values_ranks_and_order() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    (entry,) = sample(logits, [make("a", logprobs=3)]).logprobs
    assert entry is not None
    norm = math.log(sum(math.exp(x) for x in (0, 3, 1, 2)))
    assert (entry.token_id, entry.rank) == (1, 1)
    assert entry.logprob == pytest.approx(3 - norm, abs=1e-6)
    assert [token for token, _ in entry.top] == [1, 3, 2]
    assert [value for _, value in entry.top] == pytest.approx([3 - norm, 2 - norm, 1 - norm], abs=1e-6)


def test_each_row_gets_as_many_as_it_asked_for() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    requests = [make("a", logprobs=5), make("b"), make("c", logprobs=0), make("d", logprobs=20)]
    a, b, c, d = sample(logits, requests).logprobs
    assert a is not None and c is not None and d is not None
    assert b is None
    assert (len(a.top), len(c.top), len(d.top)) == (5, 0, 20)
    full = logits.log_softmax(-1)
    for row, entry in ((0, a), (2, c), (3, d)):
        assert entry.token_id == logits[row].argmax().item()
        assert entry.logprob == pytest.approx(full[row].max().item(), abs=1e-6)
    for row, entry in ((0, a), (3, d)):
        assert [token for token, _ in entry.top] == full[row].topk(len(entry.top)).indices.tolist()


def test_they_come_from_the_logits_before_any_setting() -> None:
    logits = torch.tensor([[0.0, 4.0, 1.0]])
    request = make("a", logprobs=1, temperature=0.1, top_k=1, repetition_penalty=50.0)
    request.output_token_ids = [1]
    (entry,) = sample(logits, [request]).logprobs
    assert entry is not None
    expected = logits[0].log_softmax(-1)
    assert entry.token_id == 2 and entry.rank == 2
    assert entry.logprob == pytest.approx(expected[2].item(), abs=1e-6)
    assert entry.top[0][0] == 1


def test_large_token_ids_cross_to_the_host_exactly() -> None:
    logits = torch.zeros(1, 200_003)
    logits[0, 200_001] = 9.0
    (entry,) = sample(logits.bfloat16(), [make("a", logprobs=1)]).logprobs
    assert entry is not None and entry.top[0][0] == entry.token_id == 200_001


def test_a_vocabulary_smaller_than_what_is_asked_for() -> None:
    (entry,) = sample(torch.zeros(1, 3), [make("a", logprobs=20)]).logprobs
    assert entry is not None and len(entry.top) == 3 and entry.rank == 1
