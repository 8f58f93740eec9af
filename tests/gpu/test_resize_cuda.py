"""Other sizes while running, on real graphs: answers, requests in flight, and the memory of what is retired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM, GraphConfig, Graphed, SamplingParams, graph_break
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_answers_stay_and_random_numbers_too(mode: str) -> None:
    torch.manual_seed(0)
    first, last = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 8).cuda()
    middle = graph_break(lambda h: torch.cumsum(h, -1))

    def net(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = last(middle(first(x)))
        return result

    x = torch.randn(24, 64, device="cuda")
    with Graphed(net, example=(x,), config=GraphConfig(mode=mode, sizes=(2, 8, 24))) as graphed:
        graphed.warm_up()
        graphed.capture()
        for sizes in ((5, 8, 24), (3, 12, 24), (2, 8, 24)):
            torch.cuda.manual_seed(7)
            report = graphed.resize(sizes=sizes)
            drawn = torch.rand(4, device="cuda")
            torch.cuda.manual_seed(7)
            assert torch.equal(drawn, torch.rand(4, device="cuda"))
            assert not report.failed and [key.num_tokens for key in graphed.plans] == sorted(sizes, reverse=True)
            for rows in range(1, 25):
                torch.testing.assert_close(graphed(x[:rows]), net(x[:rows]), rtol=1e-5, atol=1e-5)
        assert "EAGER" not in graphed.counters.by_runtime_mode
        graphed.check_guards()
        assert graphed.qualify().passed


def test_what_is_retired_serves_again() -> None:
    def wide(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x] * 8192, dim=1) * 2  # 3 to 5 MiB for each key

    x = torch.randn(24, 8, device="cuda")
    with Graphed(wide, example=(x,), config=GraphConfig(mode="full", sizes=(16, 23, 24))) as graphed:
        graphed.warm_up()
        graphed.capture()
        reserved = []
        for size in (22, 21, 20, 19, 18):
            graphed.resize(sizes=(16, size, 24))
            reserved.append(graphed.backend.memory().reserved_bytes)
            assert graphed.backend.memory().num_graphs == 3
            torch.testing.assert_close(graphed(x[:size]), wide(x[:size]))
        assert reserved[-1] == reserved[1], reserved


@pytest.mark.parametrize("attention", ["torch", "triton"])
@pytest.mark.parametrize("overlap", [False, True])
def test_requests_in_flight_go_on(tmp_path: Path, attention: str, overlap: bool) -> None:
    folder = write_tiny_model(tmp_path)
    settings: dict[str, Any] = {
        "device": "cuda",
        "dtype": "float32",
        "attention": attention,
        "overlap": overlap,
        "mode": "full_and_piecewise",
        "max_model_len": 128,
        "max_num_reqs": 8,
        "max_num_batched_tokens": 64,
        "kv_tokens": 4096,
        "decode_sizes": (1, 8),
        "token_sizes": (4, 64),
    }
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    answers = []
    for resizes in (False, True):
        with LLM(str(folder), **settings) as llm:
            for number in range(5):
                llm.add_request([5 + number] * (3 * number + 1), params, request_id=str(number))
            tokens: dict[str, list[int]] = {str(number): [] for number in range(5)}
            step = num_added = 0
            while llm.has_work():
                if resizes and step in (2, 9, 20):
                    suggestion = llm.suggest_sizes(min_steps=1, min_saved_percent=1.0)
                    report = llm.apply_sizes(suggestion)
                    assert not report.failed
                    num_added += len(report.added)
                for update in llm.step():
                    assert update.error is None
                    tokens[update.request_id] += update.token_ids
                step += 1
            assert (num_added > 0) is resizes
            assert "EAGER" not in llm.stats()["dispatch"]["by_runtime_mode"]
            rows = llm.stats()["dispatch"]["buckets"]
            assert sum(row["step_seconds"] for row in rows) > sum(row["launch_seconds"] for row in rows) > 0
        answers.append(tokens)
    assert answers[0] == answers[1]
