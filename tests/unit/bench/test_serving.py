"""Latencies from token times, goodput, and an engine that is driven by arrivals."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato import LLM
from ostinato.bench.load import TimedRequest
from ostinato.bench.serving import Served, latencies, serve
from ostinato.testing.tiny_models import write_tiny_model


def test_latencies_count_from_when_a_request_should_have_come() -> None:
    one = Served(at_seconds=1.0, first_seconds=1.5, last_seconds=2.5, num_tokens=11)
    assert (one.ttft_ms, one.tpot_ms) == (pytest.approx(500), pytest.approx(100))
    assert Served(at_seconds=0, first_seconds=1, last_seconds=1, num_tokens=1).tpot_ms is None


def test_goodput_needs_both_goals_and_no_error() -> None:
    good = Served(at_seconds=0, first_seconds=0.1, last_seconds=0.2, num_tokens=11)
    slow_start = Served(at_seconds=0, first_seconds=0.9, last_seconds=1.0, num_tokens=11)
    slow_tokens = Served(at_seconds=0, first_seconds=0.1, last_seconds=9.1, num_tokens=11)
    broken = Served(at_seconds=0, error="no")
    row = latencies([good, slow_start, slow_tokens, broken], 10.0, ttft_goal_ms=200, tpot_goal_ms=20)
    assert (row["num_requests"], row["num_failed"]) == (4, 1)
    assert (row["goodput_percent"], row["goodput_per_s"]) == (25.0, 0.1)
    assert (row["requests_per_s"], row["output_tokens_per_s"]) == (0.3, 3.3)
    assert row["ttft_ms_p50"] == pytest.approx(100)


def test_requests_come_when_they_should_and_all_are_answered(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, has_weights=False, has_tokenizer=False)
    requests = [TimedRequest(at_seconds=0.05 * n, prompt_tokens=3 + n, output_tokens=2 + n) for n in range(3)]
    with LLM(str(model), load_format="dummy", device="cpu", mode="none", max_num_reqs=2) as llm:
        served, seconds = serve(llm, requests, lambda n: [1] * n)
    assert [one.num_tokens for one in served] == [2, 3, 4]
    assert all(one.at_seconds <= one.first_seconds <= one.last_seconds <= seconds for one in served)
    assert seconds >= 0.1


def test_the_load_may_end_early(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, has_weights=False, has_tokenizer=False)
    requests = [TimedRequest(at_seconds=0.05 * n, prompt_tokens=3, output_tokens=4) for n in range(50)]
    with LLM(str(model), load_format="dummy", device="cpu", mode="none", max_num_reqs=2) as llm:
        served, seconds = serve(llm, requests, lambda n: [1] * n, goes_on=lambda now: now < 0.2)
    assert 1 < len(served) < 10 and seconds < 2
    assert [one.num_tokens for one in served] == [4] * len(served), "those that were sent are answered"
