"""`shadow_every` of an engine: the eager run waits for its turn, sees what its step saw, and keeps no token back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ostinato import LLM, SamplingParams
from ostinato.engine.execution import Executor, ShadowTurns
from ostinato.engine.request import FinishReason
from ostinato.errors import ConfigError
from ostinato.telemetry import KeyQuarantined, MemorySink
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "page_size": 4,
    "max_model_len": 48,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 128,
    "decode_sizes": (2, 4),
    "token_sizes": (16,),
    "mode": "full_and_piecewise",
}
PROMPTS = [[5, 6, 7], [9] * 20, [3, 250], [1], [17, 4, 4], [8] * 9, [2], [100] * 13]
KINDS = [
    SamplingParams(max_tokens=14, ignore_eos=True),
    SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=3),
    SamplingParams(max_tokens=11, ignore_eos=True, frequency_penalty=0.5),
    SamplingParams(max_tokens=6, ignore_eos=True),
]
PARAMS = KINDS * 2


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def expected(tiny: str) -> list[list[int]]:
    with LLM(tiny, **SETTINGS) as llm:
        return answers(llm)


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def quarantined(sink: MemorySink) -> list[KeyQuarantined]:
    return [event for event in sink.events if isinstance(event, KeyQuarantined)]


@pytest.fixture
def every_nth_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The turn comes at one step in so many, whatever the time says."""

    def patch(num_steps: int) -> None:
        asked = 0

        def is_due(self: ShadowTurns, *, is_idle: bool, **_: Any) -> bool:
            nonlocal asked
            asked += 1
            return self.is_waiting and (is_idle or asked % num_steps < 2)  # two in a row: the first delivers

        monkeypatch.setattr(ShadowTurns, "is_due", is_due)

    return patch


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_no_computed_token_waits_for_a_shadow(
    tiny: str, overlap: bool, every_nth_step: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of calls: a step is launched, its tokens are delivered, and only then does its eager run begin."""
    calls: list[str] = []
    real_launch, real_finish = Executor.launch, Executor.finish_shadow

    def launch(self: Executor, *args: Any) -> Any:
        output = real_launch(self, *args)
        calls.append(f"launch {output.token_ids.shape[0]}")
        return output

    def finish_shadow(self: Executor) -> None:
        calls.append("shadow")
        real_finish(self)

    every_nth_step(1)
    with LLM(tiny, **SETTINGS, overlap=overlap, shadow_every=3) as llm:
        monkeypatch.setattr(Executor, "launch", launch)
        monkeypatch.setattr(Executor, "finish_shadow", finish_shadow)
        for prompt, params in zip(PROMPTS, PARAMS, strict=True):
            llm.add_request(prompt, params)
        while llm.has_work():
            num_tokens = sum(len(update.token_ids) for update in llm.step())
            calls.append(f"deliver {num_tokens}")
        computed = delivered = num_shadows = 0
        for call in calls:
            if call == "shadow":
                num_shadows += 1
                assert delivered == computed, "all that was computed went out before"
            else:
                kind, count = call.split()
                computed += int(count) * (kind == "launch")
                delivered += int(count) * (kind == "deliver")
        assert num_shadows >= 3 and llm.stats()["shadow"]["compared"] == num_shadows


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_a_late_comparison_sees_what_its_step_saw(
    tiny: str, expected: list[list[int]], partition: str, overlap: bool, every_nth_step: Callable[[int], None]
) -> None:
    """Requests go on, end, and others write their pages, while a step waits: what was overwritten is not compared."""
    every_nth_step(5)
    sink = MemorySink()
    with LLM(tiny, **SETTINGS, partition=partition, overlap=overlap, shadow_every=1, sinks=[sink]) as llm:
        for _ in range(3):
            assert answers(llm) == expected
        shadow = llm.stats()["shadow"]
        assert shadow["compared"] >= 6 and shadow["skipped"] > shadow["compared"] and shadow["dropped"] >= 1
        assert shadow["waiting"] <= 1 and not quarantined(sink)


def test_a_planted_fault_is_found_steps_later_and_quarantined(tiny: str, every_nth_step: Callable[[int], None]) -> None:
    every_nth_step(4)
    sink = MemorySink()
    with LLM(tiny, **SETTINGS, shadow_every=2, sinks=[sink]) as llm:
        answers(llm)
        assert not quarantined(sink)
        llm._require_open().model.layers[0].mlp_norm.eps = 1e3  # graphs have the old number
        for _ in range(4):
            answers(llm)
        events = quarantined(sink)
        assert events and {event.found_by for event in events} == {"shadow"}
        assert "QUARANTINED" in llm.stats()["dispatch"]["by_reason"]


def test_it_waits_for_idle_time_where_it_has_no_share(tiny: str, expected: list[list[int]]) -> None:
    with LLM(tiny, **SETTINGS, shadow_every=2, shadow_share=0.0) as llm:
        assert answers(llm) == expected
        shadow = llm.stats()["shadow"]
        assert shadow["compared"] == 0 and shadow["waiting"] == 1 and shadow["skipped"] > 0
        llm.step()  # nothing runs
        assert llm.stats()["shadow"]["compared"] == 1
        assert answers(llm) == expected
        assert llm.capture_pending(max_seconds=0.0) == 0 and llm.stats()["shadow"]["waiting"] == 1
        llm.capture_pending()
        assert llm.stats()["shadow"]["compared"] == 2 and llm.stats()["shadow"]["waiting"] == 0


def test_its_share_is_kept_beside_requests(tiny: str, expected: list[list[int]]) -> None:
    with LLM(tiny, **SETTINGS, shadow_every=1, shadow_share=1.0) as llm:
        assert answers(llm) == expected
        assert llm.stats()["shadow"]["compared"] >= 1, "also while requests never cease"


def test_an_eager_run_that_fails_harms_no_request(
    tiny: str,
    expected: list[list[int]],
    every_nth_step: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    every_nth_step(2)
    with LLM(tiny, **SETTINGS, shadow_every=2) as llm:
        monkeypatch.setattr("ostinato.runtime.qualify.shadow.run_watched", lambda *_: 1 / 0)
        outputs = llm.generate(PROMPTS, PARAMS)
        assert [output.token_ids for output in outputs] == expected
        assert all(output.finish_reason is FinishReason.LENGTH for output in outputs)
        shadow = llm.stats()["shadow"]
        assert shadow["compared"] == 0 and shadow["dropped"] > 0 and "division by zero" in caplog.text


@pytest.mark.parametrize(
    "work",
    [
        lambda llm: llm.capture_pending(),
        lambda llm: llm.qualify(),
        lambda llm: llm.reload_weights(),
        lambda llm: llm.sleep(),
        lambda llm: llm._graphs.captures.resize(sizes=None, decode_sizes=(4,)),
    ],
    ids=["capture", "qualify", "reload", "sleep", "resize"],
)
def test_an_eager_run_that_fails_harms_nothing_that_finishes_it(
    tiny: str, work: Callable[[LLM], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(tiny, **SETTINGS, shadow_every=1, shadow_share=0.0, capture="background", capture_share=0.0) as llm:
        executor = llm._require_open()
        llm._graphs.captures.capture_late(executor.graphed.pending[0])
        answers(llm)
        assert llm.stats()["shadow"]["waiting"] == 1
        with monkeypatch.context() as broken:
            broken.setattr("ostinato.runtime.qualify.shadow.run_watched", lambda *_: 1 / 0)
            broken.setattr(ShadowTurns, "is_due", lambda *_, **__: False)
            llm.step()  # captures, as nothing runs
            assert llm.stats()["graphs"]["background"]["stopped_by"] is None
            answers(llm)
            work(llm)
        assert llm.stats()["shadow"]["waiting"] == 0 and llm.stats()["shadow"]["dropped"] >= 2


def test_other_weights_are_not_held_against_a_step_with_the_old_ones(tiny: str, tmp_path: Any) -> None:
    sink, other = MemorySink(), str(write_tiny_model(tmp_path, seed=5))
    with LLM(tiny, **SETTINGS, shadow_every=2, shadow_share=0.0, sinks=[sink]) as llm:
        answers(llm)
        assert llm.stats()["shadow"]["waiting"] == 1
        llm.reload_weights(other)
        assert llm.stats()["shadow"]["compared"] == 1 and not quarantined(sink)


def test_sleep_finishes_it_and_it_goes_on_after_wake(tiny: str, expected: list[list[int]]) -> None:
    with LLM(tiny, **SETTINGS, shadow_every=2, shadow_share=0.0) as llm:
        answers(llm)
        llm.sleep()
        assert llm.stats()["shadow"]["compared"] == 1 and llm.stats()["shadow"]["waiting"] == 0
        llm.wake()
        assert answers(llm) == expected and llm.stats()["shadow"]["waiting"] == 1


def test_bad_settings(tiny: str) -> None:
    for bad in (1.5, -0.1, True, "a tenth"):
        with pytest.raises(ConfigError, match="shadow_share"):
            LLM(tiny, **SETTINGS, shadow_share=bad)
