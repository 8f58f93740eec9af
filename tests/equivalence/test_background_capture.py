"""An engine that answers at once and captures between its steps gives the tokens of one that has captured all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ostinato import LLM, SamplingParams
from ostinato.engine.execution import BackgroundCapture
from ostinato.errors import AddressChangedError, ConfigError
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "page_size": 4,
    "kv_tokens": 2048,
    "max_model_len": 128,
    "max_num_reqs": 8,
    "max_num_batched_tokens": 32,
    "decode_sizes": (1, 4, 8),
    "token_sizes": (16, 32),
}
PARAMS = [
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=24, temperature=1.0, seed=5, ignore_eos=True),
    SamplingParams(max_tokens=18, frequency_penalty=0.7, ignore_eos=True),
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def prompts(count: int = 18) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(272) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def serve(llm: LLM) -> list[list[int]]:
    given = prompts()
    return [output.token_ids for output in llm.generate(given, (PARAMS * len(given))[: len(given)])]


@pytest.fixture(scope="module")
def expected(tiny: str) -> list[list[int]]:
    with LLM(tiny, **SETTINGS) as llm:
        return serve(llm)


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_tokens_are_the_same_while_graphs_come(
    tiny: str, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    calls = 0

    def every_third_step(self: BackgroundCapture, **_: Any) -> bool:
        nonlocal calls
        calls += 1
        return calls % 3 == 0

    monkeypatch.setattr(BackgroundCapture, "is_due", every_third_step)
    with LLM(tiny, capture="background", overlap=overlap, **SETTINGS) as llm:
        background = llm.stats()["graphs"]["background"]
        assert background["captured"] == 0 and background["pending"] == len(llm._require_open().graphed.keys)
        assert serve(llm) == expected
        dispatch, background = llm.stats()["dispatch"], llm.stats()["graphs"]["background"]
        assert background["captured"] > 0, "some came while requests ran"
        assert dispatch["by_reason"]["NOT_CAPTURED_YET"] > 0
        assert set(dispatch["by_runtime_mode"]) == {"EAGER", "PIECEWISE", "FULL"}
        assert llm.capture_pending() == 0
        assert llm.stats()["graphs"]["count"] == len(llm._require_open().graphed.keys)
        llm._require_open().graphed.counters.reset()
        assert serve(llm) == expected
        assert "EAGER" not in llm.stats()["dispatch"]["by_runtime_mode"], "as with all captured at first"


def test_idle_time_is_used_up_to_what_was_allowed(tiny: str) -> None:
    with LLM(tiny, capture="background", **SETTINGS) as llm:
        total = len(llm._require_open().graphed.keys)
        assert llm.capture_pending(max_seconds=0.0) == total
        for bad in (float("nan"), "1", None):
            with pytest.raises(ConfigError, match="max_seconds"):
                llm.capture_pending(max_seconds=bad)
        llm.add_request([1, 2, 3], PARAMS[0])
        assert llm.capture_pending() == total, "requests go first"
        while llm.has_work():
            llm.step()
        assert llm.capture_pending() == 0


def test_without_background_there_is_nothing_pending(tiny: str) -> None:
    with LLM(tiny, **SETTINGS) as llm:
        assert llm.capture_pending() == 0
        assert "background" not in llm.stats()["graphs"]


def test_sizes_may_change_while_graphs_are_pending(tiny: str, expected: list[list[int]]) -> None:
    with LLM(tiny, capture="background", **SETTINGS) as llm:
        executor = llm._require_open()
        llm._graphs.captures.resize(sizes=(32,), decode_sizes=(2, 8))
        llm.capture_pending()
        assert {key.num_reqs for key in executor.graphed.plans if key.num_reqs} == {2, 8}
        assert serve(llm) == expected


def test_a_capture_that_cannot_be_begun_harms_no_request(
    tiny: str, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundCapture, "is_due", lambda self, **_: self.stopped_by is None)
    with LLM(tiny, capture="background", guards="off", **SETTINGS) as llm:
        graphed = llm._require_open().graphed
        graphed.capture_late(graphed.pending[:1])
        num_pending = len(graphed.pending)

        def moved() -> None:
            raise AddressChangedError("a tensor has moved")

        monkeypatch.setattr(graphed, "check_guards", moved)
        assert serve(llm) == expected
        background = llm.stats()["graphs"]["background"]
        assert background["pending"] == num_pending and "a tensor has moved" in background["stopped_by"]
        with pytest.raises(AddressChangedError):
            llm.capture_pending()  # whoever asks is told


def test_costs_cannot_be_measured_before_there_are_graphs(tiny: str) -> None:
    with pytest.raises(ConfigError, match="no graphs yet"):
        LLM(tiny, capture="background", dispatch="measured", **SETTINGS)


@pytest.mark.parametrize("settings", [{"capture": "later"}, {"capture_share": 1.5}, {"capture_share": "a tenth"}])
def test_bad_settings(tiny: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LLM(tiny, **{**SETTINGS, **settings})
