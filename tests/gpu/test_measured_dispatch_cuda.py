"""Measured dispatch on a GPU: for every size the chosen way is about as fast as the fastest, timed anew.

The bar of the benchmark is 3 % on a real model. Here the model is tiny and the machine may be shared, so a size may be
off by `TOLERANCE`, and one in four by more than 3 %. And how a step is timed: behind another one, or alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.bench.engine_probe import facade_of, measure_buckets
from ostinato.bench.scenarios.dispatch import losses
from ostinato.engine import SamplingParams, StepQuery
from ostinato.runtime import GraphConfig, Graphed, LiveBatch, RuntimeMode
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


# --- how a step is timed -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cycles_per_ms() -> float:
    """Of the device's clock, once it is warm."""
    cycles, (start, end) = 20_000_000, (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(5):
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
    return cycles / float(start.elapsed_time(end))


def busy(ms: float) -> None:
    """Keep the host busy; a sleep might oversleep by more than a test allows."""
    until = time.perf_counter() + ms * 1e-3
    while time.perf_counter() < until:
        pass


def eager_ms(*, host_ms: float, device_ms: float, cycles_per_ms: float, overlap: bool) -> float:
    """Measured cost of a step that keeps the host busy and then gives the device its work."""

    def step(x: torch.Tensor) -> torch.Tensor:
        busy(host_ms)
        torch.cuda._sleep(int(device_ms * cycles_per_ms))
        return x * 2

    example = (torch.ones(4, 2, device=DEVICE),)
    with Graphed(step, example=example, config=GraphConfig(mode="full", sizes=(4,))) as graphed:
        graphed.warm_up().capture()
        table = graphed.measure(budget_seconds=0.5, overlap=overlap)
    return next(sample.ms for sample in table.samples if sample.way == "eager")


def test_a_step_that_waits_for_the_device_costs_its_device_time_and_alone_both(cycles_per_ms: float) -> None:
    parts = {"host_ms": 1.0, "device_ms": 3.0, "cycles_per_ms": cycles_per_ms}
    assert eager_ms(**parts, overlap=True) == pytest.approx(3.0, rel=0.15)
    assert eager_ms(**parts, overlap=False) == pytest.approx(4.0, rel=0.15)


def test_a_step_that_waits_for_the_host_costs_its_host_time_and_alone_both(cycles_per_ms: float) -> None:
    parts = {"host_ms": 3.0, "device_ms": 1.0, "cycles_per_ms": cycles_per_ms}
    assert eager_ms(**parts, overlap=True) == pytest.approx(3.0, rel=0.15)
    assert eager_ms(**parts, overlap=False) == pytest.approx(4.0, rel=0.15)


def test_no_step_of_an_engine_is_dearer_behind_another_than_alone(model: Path) -> None:
    """Its staging ring, its attention's plans and its shared outputs let it be launched again without a wait."""
    found = {}
    for overlap in (True, False):
        with LLM(str(model), device=DEVICE, dispatch="measured", overlap=overlap, **LIMITS) as llm:
            found[overlap] = {sample.cost: sample.ms for sample in measure_buckets(llm, budget_seconds=2.0).samples}
    shared = found[True].keys() & found[False].keys()
    assert shared and sum(found[True][cost] for cost in shared) < sum(found[False][cost] for cost in shared)
