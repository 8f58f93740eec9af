"""Prompts, arrivals and traces: the same for the same seed, and a malformed trace names its line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ostinato.bench.load import TimedRequest, clipped, poisson_requests, random_prompts, read_trace
from ostinato.errors import ConfigError

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def trace(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_prompts_have_the_asked_size_and_differ_from_call_to_call() -> None:
    rng = random.Random(0)
    first, second = (random_prompts(rng, num_prompts=3, num_tokens=5, vocab_size=272) for _ in range(2))
    assert [len(prompt) for prompt in first] == [5, 5, 5]
    assert first != second
    assert all(0 <= token < 272 for prompt in first + second for token in prompt)


def test_a_tiny_vocabulary_still_gives_valid_ids() -> None:
    assert random_prompts(random.Random(0), num_prompts=1, num_tokens=4, vocab_size=3) == [[2, 2, 2, 2]]


def test_poisson_gaps_have_the_mean_of_the_rate_and_repeat_with_the_seed() -> None:
    sizes = {"rate": 50.0, "num_requests": 4000, "prompt_tokens": 1, "output_tokens": 1}
    first = poisson_requests(**sizes, seed=1)  # type: ignore[arg-type]
    assert first == poisson_requests(**sizes, seed=1)  # type: ignore[arg-type]
    assert first != poisson_requests(**sizes, seed=2)  # type: ignore[arg-type]
    assert first[0].at_seconds == 0
    assert first[-1].at_seconds / 3999 == pytest.approx(1 / 50, rel=0.1)


def test_a_trace_starts_at_zero_in_order_of_time(tmp_path: Path) -> None:
    text = HEAD + "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:03.9799600,4808,10\n"
    first, second = read_trace(trace(tmp_path, text), speed=2.0)
    assert (first.at_seconds, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.at_seconds == pytest.approx(0.026, abs=1e-5)


def test_a_trace_may_be_cut(tmp_path: Path) -> None:
    text = HEAD + "2023-11-16 18:17:03,1,1\n" * 5 + "malformed, and never reached\n"
    assert len(read_trace(trace(tmp_path, text), num_requests=5)) == 5


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("yesterday,1,1", "TIMESTAMP"),
        ("2023-11-16 18:17:03,many,1", "ContextTokens"),
        ("2023-11-16 18:17:03,5,0", "GeneratedTokens"),
        ("2023-11-16 18:17:03,5", "GeneratedTokens"),
        ("2023-11-16 18:17:03,5,10000001", "GeneratedTokens"),
        ("2023-11-16 18:17:03.9e999,5,5", "TIMESTAMP"),
        ("2023-11-16 18:17:03.,5,5", "TIMESTAMP"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, column: str) -> None:
    with pytest.raises(ConfigError, match="line 3") as caught:
        read_trace(trace(tmp_path, HEAD + "2023-11-16 18:17:03.5,1,1\n" + line + "\n"))
    assert caught.value.context == {"line": 3, "column": column}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("TIMESTAMP,Tokens\n", "line 1 of the trace .* lacks the columns ContextTokens"),
        ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", "line 1 of the trace .* names ContextTokens twice"),
        (HEAD + "2023-11-16 18:17:03,1,024,7\n", "line 2 of the trace .* has more fields than line 1"),
        (HEAD + "2023-11-16 18:17:03\n", "line 2 .* fewer fields than line 1: it lacks ContextTokens, GeneratedTokens"),
        (HEAD, "no requests: it ends after line 1"),
        (HEAD + "\n\n", "no requests: it ends after line 3"),
        ("\x00", "lacks"),
        ("", "lacks"),
    ],
)
def test_a_trace_without_columns_or_requests_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_trace(trace(tmp_path, text))


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "absent.csv")


def test_what_does_not_fit_the_context_is_counted() -> None:
    def one(tokens: int) -> TimedRequest:
        return TimedRequest(at_seconds=0, prompt_tokens=tokens, output_tokens=1)

    fitting, num_skipped = clipped([one(9), one(10), one(8)], 10)
    assert ([r.prompt_tokens for r in fitting], num_skipped) == ([9, 8], 1)
