"""A made-up step before the first real one: it runs all of a step, and leaves nothing behind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.attention.torch_backend import TorchAttention
from ostinato.engine.execution import engine_graphs
from ostinato.engine.execution.rehearsal import rehearse
from ostinato.engine.kvcache import named_pages
from ostinato.engine.layers import SamplingHead
from ostinato.engine.models import DecoderModel
from ostinato.engine.request import SamplingParams
from ostinato.telemetry import MemorySink

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 32,
    "kv_tokens": 256,
    "decode_sizes": (1, 4),
    "token_sizes": (16, 32),
    "capture": "background",
}
PROMPTS = [[5], [7, 8, 9, 250], [3] * 20]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def hits(llm: LLM) -> list[tuple[str, str, int]]:
    buckets = llm.stats()["dispatch"]["buckets"]
    return [(bucket["bucket"], bucket["reason"], bucket["hits"]) for bucket in buckets]


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_nothing_is_left_of_it(tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Not even of weights that are not numbers yet."""
    with LLM(str(tiny_dir("llama")), **{**SETTINGS, "mode": mode}) as llm:
        expected, counted = answers(llm), hits(llm)
    seen: list[dict[str, Any]] = []
    sink = MemorySink()

    def tried(executor: Any) -> None:
        with torch.inference_mode():
            weights = [parameter.clone() for parameter in executor.model.parameters()]
            for parameter in executor.model.parameters():
                parameter.fill_(float("nan"))
        before, counters, events = state(executor), executor.graphed.counters.snapshot(), list(sink.events)
        rehearse(executor)
        assert before.keys() == state(executor).keys()
        assert all(torch.equal(tensor, before[name]) for name, tensor in state(executor).items())
        assert executor.graphed.counters.snapshot() == counters
        assert list(sink.events) == events
        seen.append(before)
        with torch.inference_mode():
            for parameter, values in zip(executor.model.parameters(), weights, strict=True):
                parameter.copy_(values)

    await_weights = engine_graphs.EngineGraphs._await_weights

    def awaits(graphs: Any, loaded: Any) -> None:
        await_weights(graphs, loaded)
        tried(graphs.executor)

    monkeypatch.setattr(engine_graphs.EngineGraphs, "_await_weights", awaits)
    with LLM(str(tiny_dir("llama")), sinks=(sink,), **{**SETTINGS, "mode": mode}) as llm:
        assert len(seen) == 1
        assert answers(llm) == expected
        assert hits(llm) == counted


def state(executor: Any) -> dict[str, torch.Tensor]:
    pages = {name: pages.clone() for name, pages in named_pages(executor.caches)}
    return pages | {"last": executor.last_ids.clone(), "counts": executor.token_counts.clone()}


@pytest.mark.parametrize(("most", "num_tokens"), [(32, 16), (8, 8)])
def test_it_runs_each_part_of_a_step_once(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, most: int, num_tokens: int
) -> None:
    ran: list[tuple[str, int]] = []

    def note(owner: Any, name: str, rows: Callable[..., int]) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: (ran.append((name, rows(*args))), real(*args))[1])

    settings = {**SETTINGS, "max_num_batched_tokens": most, "token_sizes": (most,)}
    with LLM(str(tiny_dir("llama")), **settings) as llm:
        note(DecoderModel, "forward", lambda model, ids, positions: len(ids))
        note(DecoderModel, "compute_logits", lambda model, hidden, out=None: len(hidden))
        note(SamplingHead, "__call__", lambda head, logits, *rest: len(logits))
        note(TorchAttention, "write_kv", lambda backend, k, v, cache, metadata: int(metadata.slot_mapping.max()))
        rehearse(llm._require_open())
    assert [what for what in ran if what[0] != "write_kv"] == [
        ("forward", num_tokens),
        ("compute_logits", 1),
        ("__call__", 1),
    ]
    assert {what for what in ran if what[0] == "write_kv"} == {("write_kv", 0)}, "the null page's first slot alone"


def test_a_failure_is_left_to_the_first_real_step(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no compiler")

    with LLM(str(tiny_dir("llama")), **SETTINGS) as llm:
        expected = answers(llm)
        executor = llm._require_open()
        before = state(executor)
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(DecoderModel, "compute_logits", fails)
            rehearse(executor)
        assert "made-up step failed" in caplog.text and "no compiler" in caplog.text
        assert all(torch.equal(tensor, before[name]) for name, tensor in state(executor).items())
        assert answers(llm) == expected
