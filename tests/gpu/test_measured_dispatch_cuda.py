"""Measured dispatch on a GPU: for every size the chosen way is about as fast as the fastest, timed anew.

The bar of the benchmark is 3 % on a real model. Here the model is tiny and the machine may be shared, so a size may be
off by `TOLERANCE`, and one in four by more than 3 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.bench.engine_probe import facade_of, measure_buckets
from ostinato.bench.scenarios.dispatch import losses
from ostinato.engine import SamplingParams, StepQuery
from ostinato.runtime import LiveBatch, RuntimeMode
from ostinato.testing.tiny_models import write_tiny_model

DEVICE = "cuda"
TOLERANCE = 0.15
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LIMITS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_reqs": 16,
    "max_num_batched_tokens": 256,
    "kv_tokens": 16384,
}
PROMPTS = [[7 * n % 250 + 1 for n in range(length)] for length in (3, 17, 60, 120)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("measured"), "llama")


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), device=DEVICE, dispatch="measured", **LIMITS) as llm:
        yield llm


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_the_chosen_way_is_about_as_fast_as_the_fastest_at_every_size(llm: LLM, kind: str) -> None:
    sizes = range(1, 17) if kind == "decode" else range(1, 257)
    graphed = facade_of(llm)
    graphed.use_costs(measure_buckets(llm, budget_seconds=4.0))  # steps of 0.3 ms: a start's measurement is too short
    lives = [
        LiveBatch(num_tokens=size, num_reqs=size, uniform_query_len=1)
        if kind == "decode"
        else LiveBatch(num_tokens=size, num_reqs=1)
        for size in sizes
    ]
    decisions = [graphed.decide(live) for live in lives]
    judged = [losses(decisions, measure_buckets(llm, budget_seconds=2.0)) for _ in range(3)]
    assert all(list(found) == list(sizes) for found in judged)
    percent = {size: min(found[size][0] for found in judged) for size in sizes}  # what does not show again is noise
    worst = sorted(percent.items(), key=lambda item: -item[1])[:5]
    assert max(percent.values()) <= 100 * TOLERANCE, worst
    assert sum(loss > 3 for loss in percent.values()) <= len(percent) // 4, worst


def test_no_graph_that_was_measured_slower_than_eager_is_chosen(llm: LLM) -> None:
    for size in range(1, 257):
        decision = llm.explain(StepQuery(num_prefill_tokens=size))
        eager = next((other.cost_ms for other in decision.alternatives if other.candidate == "eager"), None)
        assert decision.cost_ms is not None
        assert decision.runtime_mode is RuntimeMode.EAGER or (eager is not None and decision.cost_ms <= eager)


def test_answers_are_those_of_an_engine_that_measures_nothing(llm: LLM, model: Path) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with LLM(str(model), device=DEVICE, dispatch="order", dtype="float32", **LIMITS) as plain:
        expected = [output.token_ids for output in plain.generate(PROMPTS, params)]
    with LLM(str(model), device=DEVICE, dispatch="measured", dtype="float32", **LIMITS) as measured:
        assert [output.token_ids for output in measured.generate(PROMPTS, params)] == expected


def test_a_start_that_finds_its_file_measures_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = str(tmp_path / "costs.json")
    with LLM(str(model), device=DEVICE, costs=costs, **LIMITS) as first:
        assert first.costs is not None
    monkeypatch.setattr("ostinato.engine.execution.engine_graphs.measure_costs", None)
    with LLM(str(model), device=DEVICE, costs=costs, **LIMITS) as second:
        assert second.costs is not None and second.costs.samples
