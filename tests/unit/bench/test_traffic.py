"""From requests to steps."""

from __future__ import annotations

from ostinato.bench.load import TimedRequest
from ostinato.bench.traffic import StepModel, traffic_of


def request(at: float, prompt: int, output: int) -> TimedRequest:
    return TimedRequest(at_seconds=at, prompt_tokens=prompt, output_tokens=output)


def test_one_request_alone() -> None:
    found = traffic_of([request(5.0, 10, 4)], StepModel())
    assert (found.decode, found.mixed) == ({1: 3}, {10: 1}), "the prompt's step gives the first of four tokens"


def test_a_long_prompt_comes_in_chunks_beside_decodes() -> None:
    model = StepModel(chunk_tokens=8, step_ms=1000, token_us=0)
    found = traffic_of([request(0.0, 4, 9), request(0.5, 20, 1)], model)
    # 4 tokens; then one decode and 7, 7 and 6 of the 20; then decodes alone.
    assert found.mixed == {4: 1, 7: 1, 8: 2}
    assert found.decode == {1: 5}


def test_no_more_than_the_most_run_at_once() -> None:
    found = traffic_of([request(0.0, 1, 3)] * 5, StepModel(max_num_reqs=2))
    assert max(found.decode) == 2
    assert max(found.mixed) == 2, "two prompts of one token, or one beside a decode"


def test_tokens_are_conserved() -> None:
    requests = [request(0.01 * i, 1 + i % 7, 1 + i % 5) for i in range(60)]
    found = traffic_of(requests, StepModel(chunk_tokens=16, max_num_reqs=8))
    computed = sum(size * count for kind in (found.decode, found.mixed) for size, count in kind.items())
    assert computed == sum(r.prompt_tokens + r.output_tokens - 1 for r in requests)
