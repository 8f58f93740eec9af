"""`EngineConfig.on_moved`: a weight or buffer moves while requests run, and what follows under either policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from ostinato import LLM, SamplingParams
from ostinato.engine.execution import BackgroundCapture
from ostinato.engine.request import FinishReason
from ostinato.errors import AddressChangedError, ConfigError, StepFailedError, TensorReboundError, UnknownNameError
from ostinato.telemetry import GraphCaptured, GraphClosed, KeyQuarantined, MemorySink, StepFinished, TensorMoved
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "page_size": 4,
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 512,
    "decode_sizes": (2, 4),
    "token_sizes": (16,),
}
PROMPTS = [[5, 6, 7], [9] * 20, [3, 250], [1]]
PARAMS = [
    SamplingParams(max_tokens=14, ignore_eos=True),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=3),
    SamplingParams(max_tokens=16, ignore_eos=True, frequency_penalty=0.5),
    SamplingParams(max_tokens=10, ignore_eos=True),
]
MOVES_AT = 6


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def replace_weight(model: Any) -> None:
    """Another tensor with other values: an old graph would answer otherwise."""
    down = model.layers[0].mlp.down
    down.weight = nn.Parameter(-3 * down.weight.data, requires_grad=False)


def replace_buffer(model: Any) -> None:
    model.rotary.table = model.rotary.table.flip(0).contiguous()


def move_all(model: Any) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def drive(llm: LLM, change: Callable[[Any], None] | None) -> dict[str, Any]:
    """Tokens, last finish reason and error by request; ``change`` comes between two steps."""
    names = [llm.add_request(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    found: dict[str, Any] = {name: ([], None, None) for name in names}
    for step in range(200):
        if not llm.has_work():
            break
        if step == MOVES_AT and change is not None:
            change(llm._require_open().model)
        for update in llm.step():
            tokens, reason, _ = found[update.request_id]
            found[update.request_id] = [*tokens, *update.token_ids], update.finish_reason or reason, update.error
    return found


def tokens_of(found: dict[str, Any]) -> list[list[int]]:
    return [tokens for tokens, _, _ in found.values()]


def of(sink: MemorySink, kind: type) -> list[Any]:
    return [event for event in sink.events if isinstance(event, kind)]


@pytest.fixture
def is_always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackgroundCapture, "is_due", lambda self, **_: bool(self.num_pending))


WAYS = [
    {"mode": "full_and_piecewise"},
    {"mode": "full_and_piecewise", "overlap": True},
    {"mode": "piecewise", "partition": "fx"},
    {"mode": "full_decode_only", "guards": "sampled"},
]


@pytest.mark.parametrize("ways", WAYS, ids=[" ".join(map(str, ways.values())) for ways in WAYS])
@pytest.mark.parametrize("change", [replace_weight, replace_buffer, move_all])
def test_answers_are_those_of_eager_and_graphs_come_back(
    tiny: str, ways: dict[str, Any], change: Callable[[Any], None], is_always_due: None
) -> None:
    with LLM(tiny, **SETTINGS, mode="none") as llm:
        expected = tokens_of(drive(llm, change))
    with LLM(tiny, **SETTINGS, mode="none") as llm:
        is_told_apart = tokens_of(drive(llm, None)) != expected
    assert is_told_apart is (change is not move_all), "an old graph would be noticed"
    sink = MemorySink()
    with LLM(tiny, **SETTINGS, **ways, on_moved="recapture", sinks=[sink]) as llm:
        keys = set(llm._require_open().graphed.plans)
        sink.events.clear()
        found = drive(llm, change)
        assert tokens_of(found) == expected
        assert all(reason is FinishReason.LENGTH and error is None for _, reason, error in found.values())
        moved, captured = of(sink, TensorMoved), of(sink, GraphCaptured)
        closed = [event.key for event in of(sink, GraphClosed) if event.reason == "moved"]
        assert closed and [event.key for event in moved] == closed and {event.key for event in captured} == set(closed)
        labels = [event for event in of(sink, StepFinished) if event.reason == "MOVED"]
        assert labels and {event.runtime_mode for event in labels} == {"EAGER"}, "no step is called what it was not"
        dispatch = llm.stats()["dispatch"]
        assert dispatch["by_reason"]["MOVED"] == len(labels)
        assert set(llm._require_open().graphed.plans) == keys and not of(sink, KeyQuarantined)
        assert llm.stats()["graphs"]["background"]["captured"] == len(closed)
        assert sink.events.index(captured[-1]) < len(sink.events) - 5, "between steps, not after the last"
        before = dict(dispatch["by_runtime_mode"])
        assert tokens_of(drive(llm, None)), "and all replay again"
        after = llm.stats()["dispatch"]["by_runtime_mode"]
        grown = {mode for mode in after if after[mode] > before.get(mode, 0)}
        assert grown == ({"FULL", "EAGER"} if ways["mode"] == "full_decode_only" else set(before) - {"EAGER"})


def test_what_is_pending_waits_for_its_share_or_for_idle_time(tiny: str) -> None:
    with LLM(tiny, **SETTINGS, on_moved="recapture", capture_share=0.0) as llm:
        num_keys = len(llm._require_open().graphed.plans)
        drive(llm, replace_weight)
        assert not llm._require_open().graphed.plans, "no time is given to captures beside requests"
        assert "EAGER" in llm.stats()["dispatch"]["by_runtime_mode"]
        llm.step()  # nothing runs
        assert len(llm._require_open().graphed.plans) == 1
        assert llm.capture_pending() == 0 and len(llm._require_open().graphed.plans) == num_keys


def test_it_moves_again_after_all_was_captured_anew(tiny: str, is_always_due: None) -> None:
    with LLM(tiny, **SETTINGS, on_moved="recapture") as llm, LLM(tiny, **SETTINGS, mode="none") as eager:
        for _ in range(3):
            assert tokens_of(drive(llm, replace_weight)) == tokens_of(drive(eager, replace_weight))
            assert not llm._require_open().graphed.pending


def test_background_capture_goes_on_for_what_moves_later(tiny: str, is_always_due: None) -> None:
    with LLM(tiny, **SETTINGS, on_moved="recapture", capture="background") as llm:
        with LLM(tiny, **SETTINGS, mode="none") as eager:
            expected = [tokens_of(drive(eager, None)), tokens_of(drive(eager, replace_weight))]
        assert [tokens_of(drive(llm, None)), tokens_of(drive(llm, replace_weight))] == expected
        assert not llm._require_open().graphed.pending and llm._require_open().graphed.plans


def test_sleep_and_wake_after_a_move(tiny: str) -> None:
    with LLM(tiny, **SETTINGS, on_moved="recapture", capture_share=0.0) as llm:
        keys = set(llm._require_open().graphed.plans)
        drive(llm, move_all)
        llm.sleep()
        llm.wake()
        assert set(llm._require_open().graphed.plans) == keys


def test_a_reload_writes_where_the_weights_are_now(tiny: str) -> None:
    with LLM(tiny, **SETTINGS, on_moved="recapture") as llm:
        expected = tokens_of(drive(llm, None))
        replace_weight(llm._require_open().model)
        llm.reload_weights()
        assert llm._require_open().graphed.pending
        assert tokens_of(drive(llm, None)) == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_raising_ends_the_requests_of_the_step_with_the_typed_error(tiny: str, overlap: bool) -> None:
    """Others wait in the queue: they are answered, once the key that raises is out of service."""
    sink = MemorySink()
    with LLM(tiny, **SETTINGS, overlap=overlap, sinks=[sink]) as llm, LLM(tiny, **SETTINGS, mode="none") as eager:
        assert llm.config.on_moved == "raise"
        found = drive(llm, replace_weight)
        errors = [error for _, _, error in found.values() if error is not None]
        assert errors
        for error in errors:
            assert isinstance(error, StepFailedError) and isinstance(error.__cause__, TensorReboundError)
            assert "down.weight" in error.message
        assert not of(sink, TensorMoved) and llm.capture_pending() == 0
        replace_weight(eager._require_open().model)
        for _ in range(8):  # three a key, one key after another
            answers = tokens_of(drive(llm, None))
        assert answers == tokens_of(drive(eager, None)), "and no answer comes from an old weight"
        assert {event.found_by for event in of(sink, KeyQuarantined)} == {"failures"}


def test_raising_refuses_a_reload(tiny: str) -> None:
    with LLM(tiny, **SETTINGS) as llm:
        replace_weight(llm._require_open().model)
        with pytest.raises(AddressChangedError):
            llm.reload_weights()


def test_bad_settings(tiny: str) -> None:
    with pytest.raises(UnknownNameError, match="on_moved"):
        LLM(tiny, **SETTINGS, on_moved="recaptur")
    with pytest.raises(ConfigError, match="guards"):
        LLM(tiny, **SETTINGS, on_moved="recapture", guards="off")


def test_qualification_leaves_out_what_has_moved_and_it_is_captured_anew(tiny: str) -> None:
    sink = MemorySink()
    with LLM(tiny, **SETTINGS, mode="full_and_piecewise", on_moved="recapture", sinks=[sink]) as llm:
        graphed = llm._require_open().graphed
        move_all(llm._require_open().model)
        report = llm.qualify()
        assert not (report.passed or report.failed or report.keys) and not of(sink, KeyQuarantined)
        assert set(graphed.pending) == set(graphed.keys)
        assert llm.capture_pending() == 0
        report = llm.qualify()
        assert report.passed and {key.key for key in report.keys} == set(graphed.keys)
