"""An engine whose sizes follow the traffic while requests run, and what it tells of its steps."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from ostinato import LLM
from ostinato.engine.execution import SizeSuggestion
from ostinato.engine.request import SamplingParams
from ostinato.engine.scheduler import BatchShaper
from ostinato.engine.updates import RequestUpdate
from ostinato.errors import CaptureError, ClosedError, ConfigError, RuntimeStateError
from ostinato.telemetry import JsonLinesSink, StepDispatched, read_json_lines
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_reqs": 8,
    "max_num_batched_tokens": 32,
    "kv_tokens": 1024,
    "decode_sizes": (1, 8),
    "token_sizes": (4, 32),
    "mode": "full_and_piecewise",
}
PROMPTS = [[5], [7, 8, 9, 250], [20] * 11, [3, 1, 4], [99, 98]]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.9, seed=3)
DRIFTED = {"min_steps": 1, "min_saved_percent": 1.0}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("llama"), "llama"))


def serve(llm: LLM, *, between: dict[int, Any]) -> dict[str, list[int]]:
    """The tokens of a burst; ``between``: what is done before the step of that number, with requests in flight."""
    for number, prompt in enumerate(PROMPTS):
        llm.add_request(prompt, SAMPLED if number == 2 else GREEDY, request_id=str(number))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(PROMPTS))}
    step = 0
    while llm.has_work():
        if step in between:
            between[step]()
        updates: list[RequestUpdate] = llm.step()
        for update in updates:
            assert update.error is None
            tokens[update.request_id] += update.token_ids
        step += 1
    return tokens


@pytest.mark.parametrize("settings", [{}, {"overlap": True}, {"shadow_every": 3, "overlap": True}, {"mode": "full"}])
def test_requests_in_flight_get_the_tokens_that_they_would_have_got(model: str, settings: dict[str, Any]) -> None:
    with LLM(model, **{**SETTINGS, **settings}) as llm:
        expected = serve(llm, between={})
    reports = []
    with LLM(model, **{**SETTINGS, **settings}) as llm:

        def follow() -> None:
            assert llm._loop._scheduler.running, "requests are in flight"
            reports.append(llm.apply_sizes(llm.suggest_sizes(**DRIFTED)))

        assert serve(llm, between={1: follow, 4: follow, 9: follow}) == expected
        assert sum(len(report.added) for report in reports) > 0 and not any(report.failed for report in reports)
        assert sum(len(report.retired) for report in reports) > 0
        decode = {key.num_reqs for key in llm._executor.graphed.keys if key.uniform_query_len}  # type: ignore[union-attr]
        assert 5 in decode and 8 in decode, f"five ran at once, and the peak stays: {decode}"
        rows = llm.stats()["dispatch"]["buckets"]
        assert any(row["reason"] == "EXACT" and row["bucket"].split("/")[0] == "5" for row in rows)
        assert "EAGER" not in llm.stats()["dispatch"]["by_runtime_mode"]
        assert serve(llm, between={}) == expected, "and those that come later"
        assert llm.qualify().passed


def test_a_key_that_fails_costs_nobody_anything(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(model, **SETTINGS) as llm:
        expected = serve(llm, between={})
        graphed = llm._executor.graphed  # type: ignore[union-attr]
        before = list(graphed.keys)
        capture = graphed._runs.capture

        def fails(key: Any) -> Any:
            if key.num_reqs == 5:
                raise CaptureError("planted")
            return capture(key)

        monkeypatch.setattr(graphed._runs, "capture", fails)
        reports = []
        tokens = serve(llm, between={4: lambda: reports.append(llm.apply_sizes(llm.suggest_sizes(**DRIFTED)))})
        assert tokens == expected
        (report,) = reports
        assert {key.num_reqs for key in report.failed} == {5} and report.retired == [] and report.added
        assert set(graphed.keys) == set(before) | set(report.added)
        assert llm.stats()["failures"]["failed_captures"] == len(report.failed)


def test_nothing_to_change_changes_nothing(model: str) -> None:
    with LLM(model, **SETTINGS) as llm:
        keys = llm._executor.graphed.keys  # type: ignore[union-attr]
        suggestion = llm.suggest_sizes()
        assert not suggestion.has_changes and "0 steps were seen, 1000 are needed" in suggestion.reason
        report = llm.apply_sizes(suggestion)
        assert (report.added, report.retired) == ([], []) and llm._executor.graphed.keys == keys  # type: ignore[union-attr]


def test_it_is_refused_inside_a_step_and_from_the_dead(model: str) -> None:
    caught: list[str] = []

    class InStep:
        def emit(self, event: Any) -> None:
            if isinstance(event, StepDispatched) and not caught:
                with pytest.raises(RuntimeStateError, match="a step is being run") as error:
                    llm.apply_sizes(SizeSuggestion(reason=""))
                caught.append(str(error.value))

    with LLM(model, **SETTINGS, sinks=[InStep()]) as llm:
        llm.generate([[1, 2]], GREEDY)
        assert caught
        with pytest.raises(ConfigError, match="suggestion is a tuple"):
            llm.apply_sizes((1, 2))  # type: ignore[arg-type]
    with pytest.raises(ClosedError):
        llm.apply_sizes(SizeSuggestion(reason=""))
    with pytest.raises(ClosedError):
        llm.suggest_sizes()


@pytest.mark.parametrize("overlap", [False, True])
def test_the_times_of_the_rows_are_the_time_that_went_by(model: str, overlap: bool) -> None:
    with LLM(model, **SETTINGS, overlap=overlap) as llm:
        began = time.perf_counter()
        serve(llm, between={})
        elapsed = time.perf_counter() - began
        stats = llm.stats()
        rows = stats["dispatch"]["buckets"]
        assert all(row["launch_seconds"] > 0 for row in rows)
        launched, held = (sum(row[name] for row in rows) for name in ("launch_seconds", "step_seconds"))
        assert launched < elapsed and launched <= stats["host"]["busy_seconds"]
        assert 0.2 * elapsed < held <= elapsed, f"{held} of {elapsed} s"


def test_an_event_file_tells_what_the_engine_counts(model: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with JsonLinesSink(path) as sink, LLM(model, **SETTINGS, sinks=[sink]) as llm:
        serve(llm, between={4: lambda: llm.apply_sizes(llm.suggest_sizes(**DRIFTED))})
        expected = llm.stats()
    with open(path, encoding="utf-8") as file:
        found = read_json_lines(file).snapshot()
    for row in expected["dispatch"]["buckets"]:
        row |= {name: pytest.approx(row[name]) for name in ("launch_seconds", "step_seconds")}
    assert found == {"dispatch": expected["dispatch"], "failures": expected["failures"]}
    assert found["dispatch"]["steps"] > 10 and found["dispatch"]["never_hit"]


def test_a_sink_that_cannot_write_harms_no_request(model: str) -> None:
    with LLM(model, **SETTINGS) as llm:
        expected = serve(llm, between={})
    file = io.StringIO()
    sink = JsonLinesSink(file)
    file.close()
    with LLM(model, **SETTINGS, sinks=[sink]) as llm:
        assert serve(llm, between={6: sink.close}) == expected
    assert sink.num_dropped > 0


def test_a_load_above_the_ceiling_is_told_once(model: str) -> None:
    settings = {**SETTINGS, "mode": "full_decode_only", "decode_sizes": (1, 2)}
    with LLM(model, **settings) as llm:
        for _ in range(2):
            llm.generate([[n] for n in range(1, 6)], SamplingParams(max_tokens=60, ignore_eos=True))
            llm.generate([[n] for n in range(1, 6)], SamplingParams(max_tokens=60, ignore_eos=True))
            llm.generate([[n] for n in range(1, 6)], SamplingParams(max_tokens=60, ignore_eos=True))
        assert llm.stats()["dispatch"]["by_reason"]["OVER_LARGEST"] > 256
        assert llm.stats()["failures"]["ceiling_warnings"] == 1
        suggestion = llm.suggest_sizes(min_steps=100)
        assert suggestion.decode_sizes is not None and suggestion.decode_sizes[-1] == 5
        llm.apply_sizes(suggestion)
        llm._executor.graphed.counters.reset()  # type: ignore[union-attr]
        llm.generate([[n] for n in range(1, 6)], SamplingParams(max_tokens=60, ignore_eos=True))
        assert "OVER_LARGEST" not in llm.stats()["dispatch"]["by_reason"]


def test_batches_are_shaped_toward_the_new_sizes(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[dict[str, list[int]]] = []
    follow = BatchShaper.follow
    monkeypatch.setattr(BatchShaper, "follow", lambda self, **sizes: (followed.append(sizes), follow(self, **sizes))[1])
    with LLM(model, shape_batches=True, **SETTINGS) as llm:
        serve(llm, between={})
        suggestion = llm.suggest_sizes(**DRIFTED)
        assert suggestion.has_changes
        llm.apply_sizes(suggestion)
        assert followed == [{"decode_sizes": [1, 8], "token_sizes": [4, 32]}, llm._graphs.captures.sizes()]
        assert followed[0] != followed[1]
