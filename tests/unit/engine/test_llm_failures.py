"""`LLM` on a tiny model when steps, consumers and time run out: who gets what answer, on the simulated backend."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.execution import BackgroundCapture
from ostinato.engine.request import FinishReason, SamplingParams
from ostinato.engine.sampling import PendingSample
from ostinato.errors import EngineDeadError, EngineError, OutOfMemoryError, RequestError, StepFailedError
from ostinato.runtime import Graphed, LiveBatch, Reason
from ostinato.runtime.runners import BreakStep
from ostinato.telemetry import EngineDied, KeyQuarantined, MemorySink, ReceiverFailed, StepDispatched, StepFailed
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 32,
    "kv_tokens": 512,
}
GOOD: list[Any] = ["hello the world", [5], [7, 8, 9, 250], "and so on"]
TEN = SamplingParams(max_tokens=10, ignore_eos=True)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    with LLM(str(folder), mode="none", **SETTINGS) as llm:
        return [llm.generate([prompt], TEN)[0].token_ids for prompt in GOOD]


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Callable[[bool], LLM]]:
    """One engine for each way to step; what fails in a test leaves it as good as it was."""
    with ExitStack() as stack:

        @functools.cache
        def make(overlap: bool) -> LLM:
            sink = MemorySink()
            engine = stack.enter_context(LLM(str(folder), overlap=overlap, sinks=[sink], **SETTINGS))
            engine.sink = sink  # type: ignore[attr-defined]
            return engine

        yield make


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def llm(shared: Callable[[bool], LLM], request: pytest.FixtureRequest) -> Iterator[LLM]:
    engine = shared(request.param)
    engine.sink.events.clear()  # type: ignore[attr-defined]
    yield engine
    while engine.has_work():
        engine.step()
    allocator = engine._loop._scheduler._allocator
    allocator.check_integrity([])
    assert allocator.num_free_pages == allocator.num_usable_pages and engine._updates.num_receivers == 0


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def mortal(folder: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    """An engine of the test's own."""
    with LLM(str(folder), overlap=request.param, mode="none", sinks=[sink := MemorySink()], **SETTINGS) as engine:
        engine.sink = sink  # type: ignore[attr-defined]
        yield engine


@pytest.fixture
def fail_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], None]:
    """Let the model's n-th run from now raise once it has run, so that all it writes is written."""

    def plant(number: int, error: BaseException) -> None:
        run, calls = Graphed.run, 0

        def fails_once(self: Graphed, decision: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            output = run(self, decision, **more)
            if calls == number:
                raise error
            return output

        monkeypatch.setattr(Graphed, "run", fails_once)

    return plant


def events(llm: LLM, kind: type) -> list[Any]:
    return [event for event in llm.sink.events if isinstance(event, kind)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_a_failing_step_costs_its_requests_and_no_later_ones(
    llm: LLM, fail_after: Any, expected: list[list[int]], number: int
) -> None:
    fail_after(number, torch.OutOfMemoryError("planted"))
    outputs = llm.generate([*GOOD, *GOOD], TEN)  # four run, four wait
    failed = [output for output in outputs if output.error is not None]
    assert failed and all(isinstance(output.error, StepFailedError) for output in failed)
    for output, tokens in zip(outputs, expected * 2, strict=True):
        if output.error is None:
            assert output.token_ids == tokens
        else:
            assert output.finish_reason is FinishReason.ERROR and output.token_ids == tokens[: len(output.token_ids)]
    assert all(output.error is None for output in outputs[4:])
    assert [event.num_reqs for event in events(llm, StepFailed)] == [len(failed)]
    assert [output.token_ids for output in llm.generate(GOOD, TEN)] == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_a_graph_that_fails_each_time_is_given_up(folder: Path, expected: list[list[int]], overlap: bool) -> None:
    """A prompt of one token starts in the bucket of one; its graph is broken, and the next larger one is not."""
    settings = {**SETTINGS, "mode": "piecewise", "token_sizes": (1, 2)}
    with LLM(str(folder), overlap=overlap, sinks=[sink := MemorySink()], **settings) as llm:
        plans = llm._require_open().graphed.plans
        (key,) = [key for key in plans if key.num_tokens == 1]
        step = next(entry for entry in plans[key].entries if isinstance(entry, BreakStep))

        def breaks(*_: Any, **__: Any) -> None:
            raise ValueError("planted")

        step._fn = breaks
        for _ in range(3):
            (output,) = llm.generate([GOOD[1]], TEN)
            assert isinstance(output.error, StepFailedError) and "planted" in output.error.message
        (event,) = [event for event in sink.events if isinstance(event, KeyQuarantined)]
        assert (event.key, event.found_by) == (str(key), "failures") and "3 replays in a row raised" in event.what
        (output,) = llm.generate([GOOD[1]], TEN)
        assert output.error is None and output.token_ids == expected[1]
        taken = [event for event in sink.events if isinstance(event, StepDispatched)]
        assert [event.bucket for event in taken] == ["2"] * 10
        decision = llm._require_open().graphed.decide(LiveBatch(num_tokens=1))
        assert Reason.QUARANTINED in [rejection.reason for rejection in decision.alternatives]


@pytest.mark.parametrize("number", [1, 2, 7])
def test_an_interrupted_step_is_run_again_with_the_same_answers(
    llm: LLM, fail_after: Any, expected: list[list[int]], number: int
) -> None:
    names = [llm.add_request(prompt, TEN) for prompt in GOOD]
    fail_after(number, KeyboardInterrupt())
    found: dict[str, list[int]] = {name: [] for name in names}
    num_interrupts = 0
    while llm.has_work():
        try:
            updates = llm.step()
        except KeyboardInterrupt:
            num_interrupts += 1
            continue
        for update in updates:
            found[update.request_id] += update.token_ids
    assert num_interrupts == 1 and list(found.values()) == expected


def test_a_lost_device_ends_all_and_the_engine_says_so(mortal: LLM, fail_after: Any) -> None:
    fail_after(3, RuntimeError("CUDA error: device-side assert triggered"))
    outputs = mortal.generate([*GOOD, *GOOD], TEN)
    assert all(isinstance(output.error, EngineDeadError) for output in outputs)
    assert len(events(mortal, EngineDied)) == 1
    for call in (
        lambda: mortal.generate("x"),
        lambda: mortal.stream("x"),
        lambda: mortal.add_request("x"),
        mortal.step,
    ):
        with pytest.raises(EngineDeadError, match="device-side assert"):
            call()
    assert not mortal.has_work()


def test_threads_that_wait_when_the_device_is_lost_are_all_told(mortal: LLM, fail_after: Any) -> None:
    fail_after(6, RuntimeError("CUDA error: an illegal memory access was encountered"))
    told: list[str] = []

    def ask() -> None:
        try:
            told.extend(type(output.error).__name__ for output in mortal.generate(GOOD, TEN))
        except EngineDeadError:
            told.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a thread hangs"
    assert set(told) <= {"EngineDeadError", "refused"} and told.count("EngineDeadError") >= 4


def test_a_device_lost_while_steps_are_read_for_a_capture(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures go on between steps, but not before all requests were told."""

    def lost(_self: PendingSample) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with LLM(str(folder), overlap=True, capture="background", capture_share=0.0, **SETTINGS) as engine:
        names = [engine.add_request(prompt, TEN) for prompt in GOOD]
        engine.step()
        assert engine._loop.is_ahead
        monkeypatch.setattr(BackgroundCapture, "is_due", lambda self, **_: bool(self.num_pending))
        monkeypatch.setattr(PendingSample, "read", lost)
        updates = engine.step()
        assert [update.request_id for update in updates] == names
        assert all(isinstance(update.error, EngineDeadError) for update in updates)
        assert not engine.has_work()
        with pytest.raises(EngineDeadError, match="illegal memory access"):
            engine.step()


def test_a_consumer_that_raises_ends_its_stream_alone(llm: LLM, expected: list[list[int]]) -> None:
    other = llm.stream(GOOD[0], TEN)

    def consume() -> None:
        for _ in llm.stream(GOOD[2], TEN):
            raise ValueError("the consumer is broken")

    with pytest.raises(ValueError, match="broken"):
        consume()
    assert [token for update in other for token in update.token_ids] == expected[0]
    assert llm._loop._scheduler.running == llm._loop._scheduler.waiting == ()


def test_a_receiver_that_raises_ends_its_request_alone(llm: LLM, expected: list[list[int]]) -> None:
    def raises(_update: Any) -> None:
        raise ValueError("the receiver is broken")

    name = llm.add_request(GOOD[2], TEN)
    llm._updates.register(name, raises)
    (output,) = llm.generate(GOOD[0], TEN)
    assert output.token_ids == expected[0]
    assert [event.request_id for event in events(llm, ReceiverFailed)] == [name]
    assert llm._loop._scheduler.running == () and not llm.has_work()


def test_a_timeout_ends_its_request_with_what_it_has(llm: LLM, expected: list[list[int]]) -> None:
    late = llm.add_request(GOOD[2], SamplingParams(max_tokens=60, ignore_eos=True), timeout_s=3600.0)
    llm.add_request(GOOD[0], TEN, request_id="free", timeout_s=7200.0)
    found: dict[str, list[Any]] = {late: [], "free": []}
    for _ in range(4):
        for update in llm.step():
            found[update.request_id].append(update)
    llm._loop._deadlines.set(late, 0.0)  # as if the hour had passed
    while llm.has_work():
        for update in llm.step():
            found[update.request_id].append(update)
    tokens = {name: [t for update in updates for t in update.token_ids] for name, updates in found.items()}
    assert [update.finish_reason for update in found[late]][-1] is FinishReason.TIMEOUT
    assert 0 < len(tokens[late]) < 60 and tokens[late] == expected[2][: len(tokens[late])]
    assert found[late][-1].error is None and tokens["free"] == expected[0]


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_bad_timeouts(llm: LLM, timeout: Any) -> None:
    with pytest.raises(RequestError, match="timeout_s"):
        llm.add_request("x", timeout_s=timeout)


def test_processors_in_full_graphs(llm: LLM, expected: list[list[int]]) -> None:
    """Logits are a graph's output there: a processor's writes must not reach it, nor its neighbours."""

    def always_seven(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits.fill_(0.0)
        logits[7] = 1.0
        return logits

    def raises(_token_ids: list[int], _logits: torch.Tensor) -> torch.Tensor:
        raise ValueError("planted")

    names = [
        llm.add_request(GOOD[0], TEN),
        llm.add_request(GOOD[1], TEN, logits_processors=[always_seven]),
        llm.add_request(GOOD[2], TEN, logits_processors=[raises]),
        llm.add_request(GOOD[3], TEN),
    ]
    tokens: dict[str, list[int]] = {name: [] for name in names}
    errors = {}
    while llm.has_work():
        for update in llm.step():
            tokens[update.request_id] += update.token_ids
            if update.error is not None:
                errors[update.request_id] = update.error
    assert [tokens[name] for name in names] == [expected[0], [7] * 10, [], expected[3]]
    assert list(errors) == [names[2]] and type(errors[names[2]]) is EngineError


def test_a_request_larger_than_the_cache_among_good_ones(folder: Path, expected: list[list[int]]) -> None:
    with LLM(str(folder), **{**SETTINGS, "kv_tokens": 32}) as llm:
        outputs = llm.generate([[1] * 50, *GOOD], TEN)
        assert isinstance(outputs[0].error, OutOfMemoryError)
        assert [output.token_ids for output in outputs[1:]] == expected
