"""Choosing tokens on the CPU: greedy, seeds, neighbours, preemption, bad rows, and what it must not touch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import FinishReason, Request, SamplingParams
from ostinato.engine.sampling import PendingSample
from ostinato.engine.scheduler import Scheduler
from ostinato.errors import EngineError
from ostinato.testing.sampling import sample

VOCAB = 50


def make(
    name: str = "r", *, prompt: list[int] | None = None, outputs: list[int] | None = None, **params: Any
) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=prompt or [0],
        output_token_ids=outputs or [],
        params=SamplingParams(**params),
    )


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_is_argmax(dtype: torch.dtype) -> None:
    logits = random_logits(5).to(dtype)
    result = sample(logits, [make(str(i)) for i in range(5)])
    assert result.token_ids == logits.argmax(-1).tolist()
    assert result.logprobs == [None] * 5 and result.errors == {}


def test_greedy_rows_stay_greedy_beside_random_ones() -> None:
    logits = random_logits(4)
    requests = [make("a"), make("b", temperature=5.0, seed=1), make("c"), make("d", temperature=5.0, top_k=3)]
    best = logits.argmax(-1).tolist()
    for _ in range(20):
        token_ids = sample(logits, requests).token_ids
        assert (token_ids[0], token_ids[2]) == (best[0], best[2])


def test_a_tiny_temperature_is_greedy_and_raises_no_nan() -> None:
    logits = random_logits(3)
    requests = [make(str(t), temperature=t, seed=0) for t in (5e-324, 1e-40, 1e-7)]
    assert sample(logits, requests).token_ids == logits.argmax(-1).tolist()


def test_a_huge_temperature_is_uniform_over_what_is_allowed() -> None:
    logits = torch.tensor([[0.0, -math.inf, 5.0, -300.0]])
    tokens = {sample(logits, [make(temperature=1e30, seed=s)]).token_ids[0] for s in range(60)}
    assert tokens == {0, 2, 3}


def test_logits_are_not_written_to() -> None:
    logits = random_logits(2)
    before = logits.clone()
    everything: dict[str, Any] = {
        "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.5,
        "presence_penalty": 1.0, "frequency_penalty": 1.0, "logprobs": 3,
    }  # fmt: skip
    sample(logits, [make(outputs=[1, 2], **everything), make("s")])
    assert torch.equal(logits, before)


def test_requests_are_not_changed() -> None:
    request = make(temperature=1.0, seed=3, logprobs=1)
    sample(random_logits(1), [request])
    assert (request.output_token_ids, request.logprobs, request.error) == ([], [], None)


def test_results_of_inference_mode_logits_can_be_sampled_outside_of_it() -> None:
    with torch.inference_mode():
        logits = random_logits(2) + 0
    sample(logits, [make("a", temperature=1.0), make("b", repetition_penalty=2.0)])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 1, "top_k": 4, "top_p": 0.9, "logprobs": 2}])
def test_one_bad_row_is_an_error_for_its_request_alone(bad: float, params: dict[str, Any]) -> None:
    logits = random_logits(4)
    requests = [make("a"), make("bad", **params), make("c", temperature=1.0, seed=5, top_p=0.8), make("d", logprobs=1)]
    healthy = sample(logits, requests)
    logits[1, 7] = bad
    result = sample(logits, requests)
    assert set(result.errors) == {"bad"}
    error = result.errors["bad"]
    assert isinstance(error, EngineError) and error.context["request"] == "bad"
    assert result.token_ids[1] == -1 and result.logprobs[1] is None
    for row in (0, 2, 3):
        assert result.token_ids[row] == healthy.token_ids[row]
        assert result.logprobs[row] == healthy.logprobs[row]


def test_a_row_with_every_token_ruled_out_is_an_error() -> None:
    logits = torch.full((2, VOCAB), -math.inf)
    logits[1, 3] = 0.0
    result = sample(logits, [make("none", temperature=1.0), make("one", temperature=1.0)])
    assert set(result.errors) == {"none"} and result.token_ids == [-1, 3]


def test_all_rows_bad_is_no_crash() -> None:
    requests = [make("a", temperature=1.0, top_k=2), make("b", temperature=1.0, top_p=0.5), make("c", min_p=0.2)]
    assert set(sample(torch.full((3, VOCAB), math.nan), requests).errors) == {"a", "b", "c"}


def test_no_requests_no_tokens() -> None:
    assert sample(torch.empty(0, VOCAB), []).token_ids == []


@pytest.mark.parametrize(("logits", "tokens"), [((3, VOCAB), 2), ((VOCAB,), 2), ((2, VOCAB), 1), ((1, 2, VOCAB), 2)])
def test_logits_and_tokens_that_do_not_match_are_refused(logits: tuple[int, ...], tokens: int) -> None:
    with pytest.raises(EngineError, match="do not match"):
        PendingSample(torch.zeros(tokens, dtype=torch.int64), torch.zeros(logits), [make("a"), make("b")])


def test_unseeded_requests_follow_the_given_generator() -> None:
    logits, requests = random_logits(1).expand(8, -1), [make(str(i), temperature=2.0) for i in range(8)]
    draws = [sample(logits, requests, generator=torch.Generator().manual_seed(s)).token_ids for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) > 1, "requests do not share one number"
    generator = torch.Generator().manual_seed(1)
    first, second = (sample(logits, requests, generator=generator).token_ids for _ in range(2))
    assert first != second, "the generator moves on"


settings_strategy = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 4.0]),
        "top_k": st.sampled_from([0, 1, 3, 49, 50, 999]),
        "top_p": st.sampled_from([1.0, 0.99, 0.5, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.05, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "logprobs": st.sampled_from([None, 0, 5]),
        "seed": st.integers(-(2**63), 2**63 - 1),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(settings_strategy, min_size=2, max_size=9), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_a_seeded_request_gives_the_same_whoever_shares_its_batch(
    rows: list[dict[str, Any]], seed: int, order: Any
) -> None:
    logits = random_logits(len(rows), seed)
    requests = [make(str(i), prompt=[1, 2], outputs=[i, i, 3], **row) for i, row in enumerate(rows)]
    alone = [sample(logits[i : i + 1], [request]) for i, request in enumerate(requests)]
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    together = sample(logits[shuffled], [requests[i] for i in shuffled])
    for place, i in enumerate(shuffled):
        assert together.token_ids[place] == alone[i].token_ids[0]
        ours, theirs = together.logprobs[place], alone[i].logprobs[0]
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.rank == theirs.rank and ours.logprob == pytest.approx(theirs.logprob, abs=1e-6)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


def generate(num_pages: int, others: int) -> tuple[list[int], int]:
    """Run a seeded request through the scheduler beside unseeded ones; its tokens and preemptions."""
    allocator = PageAllocator(num_pages, 2)
    scheduler = Scheduler(max_num_reqs=8, max_num_batched_tokens=16, max_model_len=64, allocator=allocator)
    crowd = [make(f"o{i}", prompt=[i, 1], max_tokens=12, temperature=1.0) for i in range(others)]
    ours = make("ours", prompt=[5, 6, 7], max_tokens=12, temperature=1.5, top_p=0.95, seed=11, repetition_penalty=1.1)
    for request in [*crowd, ours]:
        scheduler.add(request)
    for _ in range(500):
        if not scheduler.has_work():
            break
        batch = scheduler.schedule()
        requests = [item.request for item in batch.items if item.samples]
        rows = [random_logits(1, seed=sum(r.all_token_ids) * 100 + r.num_tokens) for r in requests]
        token_ids = sample(torch.cat(rows), requests).token_ids if rows else []
        scheduler.complete(batch, {r.request_id: t for r, t in zip(requests, token_ids, strict=True)})
        for request in requests:
            if len(request.output_token_ids) == request.params.max_tokens:
                scheduler.finish(request, FinishReason.LENGTH)
    assert ours.finish_reason is FinishReason.LENGTH
    return ours.output_token_ids, ours.num_preemptions


def test_a_seeded_request_gives_the_same_tokens_after_preemption() -> None:
    alone, none = generate(num_pages=100, others=0)
    crowded, preemptions = generate(num_pages=13, others=3)
    assert none == 0 and preemptions > 0
    assert len(alone) == 12 and len(set(alone)) > 4
    assert crowded == alone


def test_seeds_and_positions_give_different_tokens() -> None:
    logits = torch.zeros(1, 1000)
    by_seed = [sample(logits, [make(temperature=1.0, seed=s)]).token_ids[0] for s in range(40)]
    by_position = [sample(logits, [make(temperature=1.0, seed=0, outputs=[1] * n)]).token_ids[0] for n in range(40)]
    assert len(set(by_seed)) > 30 and len(set(by_position)) > 30
    assert by_seed != by_position
