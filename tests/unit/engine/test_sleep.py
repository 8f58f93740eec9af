"""`LLM.sleep` and `LLM.wake`: graphs go and come back, answers stay, and requests meanwhile are told what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.execution.kv_pool import KvPool
from ostinato.engine.request import SamplingParams
from ostinato.errors import (
    AddressChangedError,
    AsleepError,
    CaptureError,
    ClosedError,
    OutOfMemoryError,
    RuntimeStateError,
)
from ostinato.runtime import Graphed, Reason
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 256,
    "decode_sizes": (1, 4),
    "token_sizes": (16,),
}
PROMPTS: list[Any] = [[5], [7, 8, 9, 250], [3] * 20]
PARAMS = [
    SamplingParams(max_tokens=8, ignore_eos=True),
    SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, seed=3),
    SamplingParams(max_tokens=8, ignore_eos=True, repetition_penalty=1.3),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny"), "llama"))


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def modes(llm: LLM) -> dict[str, int]:
    return dict(llm.stats()["dispatch"]["by_runtime_mode"])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", ["none", "piecewise", "full_and_piecewise"])
def test_answers_are_the_same_after_a_sleep(folder: str, mode: str, overlap: bool) -> None:
    with LLM(folder, mode=mode, overlap=overlap, shadow_every=2, **SETTINGS) as llm:
        before, graphs, steps = answers(llm), llm.stats()["graphs"], modes(llm)
        for number in (1, 2):
            report = llm.sleep()
            assert report.num_graphs == graphs["count"] and (report.kv_bytes, report.device_bytes) == (0, None)
            stats = llm.stats()
            assert stats["sleep"] == {"state": "asleep", "sleeps": number}
            assert (stats["graphs"]["count"], stats["graphs"]["pool_bytes"]) == (0, 0)
            assert llm.inspect() == [] and not llm.has_work() and llm.step() == []
            told: list[Any] = []
            llm.wake(on_key=told.append)
            assert len(set(told)) == graphs["count"]
            stats = llm.stats()
            assert stats["sleep"] == {"state": "awake", "sleeps": number}
            for name in ("count", "segments", "pool_bytes"):
                assert stats["graphs"][name] == graphs[name]
            assert answers(llm) == before
        assert modes(llm) == {name: 3 * count for name, count in steps.items()}, "the steps took the same ways"


def test_requests_are_refused_while_it_sleeps(folder: str) -> None:
    with LLM(folder, **SETTINGS) as llm:
        suggestion = llm.suggest_sizes()
        llm.sleep()
        for call in (
            lambda: llm.generate([[5]]),
            lambda: llm.add_request([5]),
            lambda: next(llm.stream([5])),
            lambda: llm.chat([{"role": "user", "content": "x"}]),
            lambda: llm.qualify(),
            lambda: llm.apply_sizes(suggestion),
            lambda: llm.sleep(),
        ):
            with pytest.raises(AsleepError, match="sleeps") as caught:
                call()
            assert caught.value.code == "OST312" and "wake()" in caught.value.fix
        assert not llm.has_work()
        llm.wake()
        assert len(llm.generate([[5]])[0].token_ids) > 0


def test_it_sleeps_and_wakes_in_turns_only(folder: str) -> None:
    with LLM(folder, **SETTINGS) as llm:
        with pytest.raises(RuntimeStateError, match="awake"):
            llm.wake()
        name = llm.add_request([5], PARAMS[0])
        llm.step()
        with pytest.raises(RuntimeStateError, match="in progress") as caught:
            llm.sleep()
        assert not isinstance(caught.value, AsleepError) and llm.stats()["sleep"]["state"] == "awake"
        llm.abort(name)
        while llm.has_work():
            llm.step()
        llm.sleep()
    for call in (llm.sleep, llm.wake):
        with pytest.raises(ClosedError):
            call()


def test_a_quarantined_key_is_not_captured_again(folder: str) -> None:
    with LLM(folder, mode="full_decode_only", **SETTINGS) as llm:
        service = llm._require_open().graphed._service
        keys = llm._require_open().graphed.keys
        service._dispatcher.block(keys[0], Reason.QUARANTINED)
        llm.sleep()
        llm.wake()
        graphed = llm._require_open().graphed
        assert graphed.keys == keys and set(graphed.plans) == set(keys[1:])
        assert graphed.why_blocked(keys[0]) is Reason.QUARANTINED


def test_what_was_still_to_come_comes_in_the_background(folder: str) -> None:
    with LLM(folder, capture="background", capture_share=0.0, mode="full_decode_only", **SETTINGS) as llm:
        before = answers(llm)
        background = llm._background
        assert background is not None
        background.capture_next(is_idle=True)
        graphed = llm._require_open().graphed
        captured, pending = set(graphed.plans), graphed.pending
        assert len(captured) == 1 and pending
        llm.sleep()
        assert llm.step() == [] and not graphed.plans, "an idle step captures nothing meanwhile"
        assert background.stopped_by is None, "it did not even try"
        with pytest.raises(AsleepError):
            llm.capture_pending()
        told: list[Any] = []
        llm.wake(on_key=told.append)
        assert set(told) == set(graphed.plans) == captured and graphed.pending == pending
        assert answers(llm) == before
        assert llm.capture_pending() == 0 and set(graphed.plans) == captured | set(pending)


def test_a_manifest_keeps_what_was_learned_before_the_sleep(folder: str, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    with LLM(folder, manifest=str(manifest), **SETTINGS) as llm:
        answers(llm)
        llm.sleep()
        asleep = manifest.read_text()
        assert '"verdict": "captured"' in asleep and '"verdict": "pending"' not in asleep
    assert manifest.read_text() == asleep


@pytest.mark.parametrize("what", ["captures", "device", "cache"])
def test_a_waking_that_fails_sleeps_on(folder: str, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with LLM(folder, **SETTINGS) as llm:
        before = answers(llm)
        llm.sleep()
        with monkeypatch.context() as patch:
            if what == "captures":
                patch.setattr(Graphed, "capture", _raising(CaptureError("planted")))
            elif what == "device":
                patch.setattr(Graphed, "warm_up", _raising(torch.OutOfMemoryError("planted")))
            else:
                patch.setattr(KvPool, "take_back", _raising(OutOfMemoryError("planted")))
            with pytest.raises((CaptureError, OutOfMemoryError), match=r"planted|graphs do not fit"):
                llm.wake()
        assert llm.stats()["sleep"]["state"] == "asleep" and llm.stats()["graphs"]["count"] == 0
        with pytest.raises(AsleepError):
            llm.generate([[5]])
        llm.wake()
        assert answers(llm) == before and llm.stats()["graphs"]["count"] > 0


def _raising(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


@pytest.mark.parametrize("capture", ["eager", "background"])
def test_waking_looks_whether_all_lies_where_graphs_read_it(
    folder: str, monkeypatch: pytest.MonkeyPatch, capture: str
) -> None:
    settings = {**SETTINGS, "capture": capture, **({"capture_share": 0.0} if capture == "background" else {})}
    with LLM(folder, mode="full_and_piecewise", **settings) as llm:
        before = answers(llm)
        if capture == "background":
            llm.step()  # one graph of several
        llm.sleep()
        executor = llm._require_open()

        def moves(_self: Graphed) -> None:
            for tensor in executor.model.parameters():
                tensor.data = tensor.data.clone()
            check(_self)

        check = Graphed.check_guards
        with monkeypatch.context() as patch:
            patch.setattr(Graphed, "check_guards", moves)  # after the last capture
            with pytest.raises(AddressChangedError, match="moved since capture"):
                llm.wake()
        assert llm.stats()["sleep"]["state"] == "asleep" and llm.stats()["graphs"]["count"] == 0
        llm.wake()
        assert answers(llm) == before
