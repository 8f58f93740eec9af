"""No graph of a step that the KV cache cannot hold: refused where sizes were named, cut where they were not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato import LLM, EngineConfig, SamplingParams
from ostinato.engine.execution import memory_budget
from ostinato.engine.execution.kv_pool import KvPool
from ostinato.errors import ConfigError
from ostinato.runtime import PlannedSizes
from ostinato.telemetry import GraphClosed, KeyDropped, MemorySink

SETTINGS: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "mode": "full_and_piecewise", "page_size": 16}
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
PROMPTS = [[1, 2, 3], [4], [5, 6], [7]]


@pytest.mark.parametrize(
    ("sizes", "words", "fix"),
    [
        ({"decode_sizes": (1, 8)}, "decode_sizes has 8, and a KV cache of 32 tokens holds 2 decodes", "above 2 .* 128"),
        ({"token_sizes": (16, 256)}, "token_sizes has 256, .* holds 32 tokens", "above 32 .* 256"),
    ],
)
def test_sizes_that_were_named_are_refused(sizes: dict[str, Any], words: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        EngineConfig(kv_tokens=32, **sizes)
    assert caught.value.context["field"] == next(iter(sizes))
    with pytest.raises(ConfigError, match=fix):
        EngineConfig(kv_tokens=20, **sizes)  # in whole pages, that is 32


def test_sizes_that_just_fit() -> None:
    EngineConfig(kv_tokens=32, decode_sizes=(1, 2), token_sizes=(32,))
    EngineConfig(kv_tokens=128, decode_sizes=(1, 8), token_sizes=(128,))


def test_default_sizes_end_at_what_the_cache_holds(tiny_dir: Callable[[str], Path]) -> None:
    with LLM(str(tiny_dir("llama")), kv_tokens=80, max_num_batched_tokens=256, **SETTINGS) as llm:
        planned = PlannedSizes.of(llm._require_open().graphed.keys)
        assert (planned.decode, planned.mixed) == ((1, 2, 4, 5), (16, 32, 64, 80))
        reasons = llm.stats()["config"]["reasons"]
        assert reasons["decode_sizes"].startswith("up to 5:") and reasons["token_sizes"].startswith("up to 80:")
        llm.generate([[number] for number in range(8)], PARAMS)
        assert "EAGER" not in llm.stats()["dispatch"]["by_runtime_mode"], "the peak has a graph"
    with LLM(str(tiny_dir("llama")), kv_tokens=1024, **SETTINGS) as llm:
        assert not {"decode_sizes", "token_sizes"} & set(llm.stats()["config"]["reasons"])


def settle_at(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """As if graphs had left memory for so many pages, the null page not counted."""
    settle = KvPool.settle

    def with_little_left(self: KvPool, **how: Any) -> None:
        found = 2 * (pages + 1) * 16 * self._token_bytes  # a CPU gives half
        monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: found)
        settle(self)

    monkeypatch.setattr(KvPool, "settle", with_little_left)


@pytest.mark.parametrize("capture", ["eager", "background"])
def test_a_cache_that_gets_less_gives_up_sizes_that_no_step_can_have(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capture: str
) -> None:
    sizes: dict[str, Any] = {"decode_sizes": (1, 4, 8, 16), "token_sizes": (16, 64, 128, 256)}
    with LLM(str(tiny_dir("llama")), **sizes, **SETTINGS) as llm:
        expected = [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]
    settle_at(monkeypatch, pages=5)
    sink = MemorySink()
    with LLM(str(tiny_dir("llama")), capture=capture, sinks=[sink], **sizes, **SETTINGS) as llm:
        executor = llm._require_open()
        assert llm.stats()["config"]["kv_tokens"] == 80
        planned = PlannedSizes.of(executor.graphed.keys)
        assert (planned.decode, planned.mixed) == ((1, 4, 8), (16, 64, 128))
        dropped = [event for event in sink.events if isinstance(event, KeyDropped)]
        assert len(dropped) == 2 and all("5 pages of 16 tokens" in event.reason for event in dropped)
        closed = {event.key for event in sink.events if isinstance(event, GraphClosed)}
        assert closed == ({event.key for event in dropped} if capture == "eager" else set())
        llm.capture_pending()
        assert set(llm._graphs.captures.costs) == set(executor.graphed.keys) == set(executor.graphed.plans)
        assert [output.token_ids for output in llm.generate(PROMPTS, PARAMS)] == expected


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"decode_sizes": (1, 5, 9), "sizes": None}, "decode_sizes has 9, .* holds 5 decodes"),
        ({"decode_sizes": None, "sizes": (16, 80, 96)}, "token_sizes has 96, .* holds 80 tokens"),
    ],
)
def test_a_change_of_sizes_that_the_cache_cannot_hold(
    tiny_dir: Callable[[str], Path], sizes: dict[str, Any], words: str
) -> None:
    with LLM(str(tiny_dir("llama")), kv_tokens=80, max_num_batched_tokens=256, **SETTINGS) as llm:
        graphed = llm._require_open().graphed
        before = list(graphed.keys)
        with pytest.raises(ConfigError, match=words):
            llm._graphs.resize(on_key=None, **sizes)
        assert graphed.keys == before and set(graphed.plans) == set(before), "nothing was half applied"
        report = llm._graphs.resize(decode_sizes=(1, 3, 5), sizes=None, on_key=None)
        assert {key.num_reqs for key in report.added} == {3}
