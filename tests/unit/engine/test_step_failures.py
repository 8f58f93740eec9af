"""Failing steps, deadlines and logits processors in the loop: who ends, with what error, and who goes on."""

from __future__ import annotations

import dataclasses
import gc
import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from ostinato.engine.request import FinishReason, Request
from ostinato.engine.sampling import PendingSample
from ostinato.engine.step_errors import leaves_device_usable
from ostinato.engine.updates import RequestUpdate
from ostinato.errors import (
    EngineDeadError,
    EngineError,
    GuardError,
    OstinatoError,
    PageIntegrityError,
    StepFailedError,
)
from ostinato.telemetry import EngineDied, StepFailed
from ostinato.testing.scripted_loop import EOS
from ostinato.testing.scripted_loop import ScriptedLoop as Bench

NAN = math.nan

ADVICE = "\nCUDA kernel errors might be reported late.\nCompile with `TORCH_USE_CUDA_DSA` for device-side assertions."
STICKY = "CUDA error: an illegal memory access was encountered" + ADVICE


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(None, overlap=request.param)


def joined(updates: Sequence[RequestUpdate]) -> tuple[str, list[int], FinishReason | None]:
    """Text, tokens and the finish reason, which only the last update may have."""
    assert all(update.finish_reason is None for update in updates[:-1])
    text = "".join(update.text for update in updates)
    return text, [token for update in updates for token in update.token_ids], updates[-1].finish_reason


def wrapped(error: Exception) -> Exception:
    """As a layer between would raise it."""
    try:
        raise GuardError("the break failed") from error
    except GuardError as found:
        return found


# --- which errors leave the device usable ---------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory" + ADVICE),
        RuntimeError("CUDA error: out of memory" + ADVICE),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: operation not permitted when stream is capturing" + ADVICE),
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        GuardError("the address of slot 'x' has changed"),
        PageIntegrityError("token 7 has no slot"),
        ValueError("CUDA error: said by somebody who is no runtime"),
        ZeroDivisionError(),
        MemoryError(),
    ],
)
def test_errors_that_pass(error: Exception) -> None:
    assert leaves_device_usable(error) and leaves_device_usable(wrapped(error))


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: device-side assert triggered" + ADVICE),
        torch.AcceleratorError("something that nobody has met yet"),
        RuntimeError(STICKY),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA driver error: misaligned address"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("HIP error: unspecified launch failure"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("backend raised:\n" + STICKY),
    ],
)
def test_errors_that_stay(error: Exception) -> None:
    assert not leaves_device_usable(error) and not leaves_device_usable(wrapped(error))


def test_a_chain_that_bites_its_tail() -> None:
    first, second = ValueError(), ValueError()
    first.__context__, second.__cause__ = second, first
    assert leaves_device_usable(first)


# --- a step that fails ----------------------------------------------------------------------------


def test_a_failing_step_ends_its_requests_and_no_others(bench: Bench) -> None:
    bench = Bench(None, overlap=bench.overlap, max_num_reqs=2)
    first = [bench.add(name, [1, 2, 3, 4], max_tokens=4) for name in "ab"]
    second = [bench.add(name, [5, 6], max_tokens=2) for name in "cd"]
    cause = torch.OutOfMemoryError("CUDA out of memory")
    bench.executor.failures = [None, None, cause]
    found = bench.run()
    for request in first:
        text, tokens, reason = joined(found[request.request_id])
        assert (text, tokens, reason) == ("", [1, 2], FinishReason.ERROR), "tokens of the steps before are delivered"
        error = found[request.request_id][-1].error
        assert isinstance(error, StepFailedError) and error.__cause__ is cause and "out of memory" in error.message
        assert request.error is error and error.context["num_reqs"] == 2
    for request in second:
        assert joined(found[request.request_id])[1:] == ([5, 6], FinishReason.LENGTH)
    (event,) = (event for event in bench.events if isinstance(event, StepFailed))
    assert (event.num_reqs, event.num_in_a_row) == (2, 1)


def test_an_engine_that_failed_takes_requests_as_before(bench: Bench) -> None:
    bench.add("a", [1, 2, 3], max_tokens=3)
    bench.executor.failures = [ValueError("a break went wrong")]
    assert [u.finish_reason for u in bench.run()["a"]] == [FinishReason.ERROR]
    bench.add("a", [1, 2, 3], max_tokens=3)
    assert joined(bench.run()["a"])[1:] == ([1, 2, 3], FinishReason.LENGTH)


def test_a_chunk_of_a_prompt_that_fails_ends_its_request(bench: Bench) -> None:
    bench.add("long", [1], prompt=60, max_tokens=1)
    bench.executor.failures = [None, ValueError("planted")]
    (update,) = bench.run()["long"]
    assert isinstance(update.error, StepFailedError)


def test_when_every_step_fails_all_requests_end_and_the_loop_too(bench: Bench) -> None:
    for index in range(40):
        bench.add(str(index), [1], max_tokens=5)
    bench.executor.failures = [RuntimeError(f"planted {n}") for n in range(1000)]
    found = bench.run()
    assert len(found) == 40
    for updates in found.values():
        (update,) = updates
        assert update.finish_reason is FinishReason.ERROR and isinstance(update.error, StepFailedError)
    assert len(bench.executor.batches) == 5, "eight a step"
    assert [e.num_in_a_row for e in bench.events if isinstance(e, StepFailed)] == [1, 2, 3, 4, 5]


def test_a_preempted_request_outlives_the_step_that_it_made_room_for() -> None:
    for overlap in (False, True):
        bench = Bench(None, overlap=overlap, num_pages=8)  # 28 tokens for two requests of 23
        for name in "ab":
            bench.add(name, [7] * 20, max_tokens=20)
        before: list[RequestUpdate] = []
        while not any(request.num_preemptions for request in bench.scheduler.waiting):
            before += bench.loop.step()
        bench.executor.failures = [ValueError("planted")]
        found = bench.run()
        for update in reversed(before):
            found.setdefault(update.request_id, []).insert(0, update)
        assert isinstance(found["a"][-1].error, StepFailedError)
        assert joined(found["b"])[1:] == ([7] * 20, FinishReason.LENGTH)


def test_tokens_that_cannot_be_handed_out_are_a_step_that_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = bench.executor.execute

    def cut(batch: Any) -> Any:
        output = execute(batch)
        return dataclasses.replace(output, logits=output.logits[:-1])

    monkeypatch.setattr(bench.executor, "execute", cut)
    bench.add("a", [1], max_tokens=5)
    (update,) = bench.run()["a"]
    assert isinstance(update.error, StepFailedError) and "do not match" in update.error.message


@pytest.mark.parametrize("first_to_fail", [0, 1, 2])
def test_tokens_that_cannot_be_read_end_their_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, first_to_fail: int
) -> None:
    """With overlap the step after is launched by then, and feeds on tokens that nobody will see."""
    read, num_reads = PendingSample.read, 0

    def fails_once(self: PendingSample) -> Any:
        nonlocal num_reads
        num_reads += 1
        if num_reads == first_to_fail + 1:
            raise RuntimeError("the copy was lost")
        return read(self)

    monkeypatch.setattr(PendingSample, "read", fails_once)
    bench = Bench(None, overlap=bench.overlap, max_num_reqs=2)
    for name in "ab":
        bench.add(name, [1, 2, 3, 4], max_tokens=4)
    bench.add("c", [5, 6], max_tokens=2)
    found = bench.run()
    for name in "ab":
        assert joined(found[name])[1:] == ([1, 2, 3, 4][:first_to_fail], FinishReason.ERROR)
        assert isinstance(found[name][-1].error, StepFailedError)
    assert joined(found["c"])[1:] == ([5, 6], FinishReason.LENGTH)


@pytest.mark.parametrize("is_through", [False, True], ids=["before", "after"])
def test_an_interrupted_read_is_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch, is_through: bool) -> None:
    """Also where the values were there already: the memory of their copy is not another step's yet."""
    read, num_reads = PendingSample.read, 0

    def interrupted_once(self: PendingSample) -> Any:
        nonlocal num_reads
        num_reads += 1
        if num_reads == 2:
            if is_through:
                read(self)
            raise KeyboardInterrupt
        return read(self)

    monkeypatch.setattr(PendingSample, "read", interrupted_once)
    for name in "ab":
        bench.add(name, [1, 2, 3, 4], max_tokens=4)
    found: list[RequestUpdate] = []
    with pytest.raises(KeyboardInterrupt):
        while True:
            found += bench.loop.step()
    rest = bench.run()
    for name in "ab":
        updates = [update for update in found if update.request_id == name] + rest[name]
        assert joined(updates)[1:] == ([1, 2, 3, 4], FinishReason.LENGTH)


def test_a_kept_error_keeps_no_tensor_of_its_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []

    def execute(_batch: Any) -> Any:
        workspace = torch.empty(1000)
        held.append(weakref.ref(workspace))
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(bench.executor, "execute", execute)
    request = bench.add("a", [1])
    found = bench.run()
    gc.collect()
    assert found["a"][-1].error is request.error is not None and held[0]() is None


# --- an engine that dies --------------------------------------------------------------------------


def killed(bench: Bench) -> EngineDeadError:
    """What `add` and `step` say of a dead engine."""
    assert not bench.loop.has_work()
    for call in (lambda: bench.add("late", [1]), bench.loop.step):
        with pytest.raises(EngineDeadError) as caught:
            call()
    bench.loop.abort("late")
    assert not bench.loop.has_work() and not bench.scheduler.has_work()
    return caught.value


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_lost_device_ends_all_requests(bench: Bench, num_steps: int) -> None:
    bench = Bench(None, overlap=bench.overlap, max_num_reqs=2)
    for name in "abcd":  # two run, two wait
        bench.add(name, [1, 2, 3, 4, 5, 6], max_tokens=6)
    cause = RuntimeError(STICKY)
    bench.executor.failures = [*[None] * num_steps, cause]
    found = bench.run()
    assert sorted(found) == list("abcd")
    for name, updates in found.items():
        num_read = (num_steps - bench.overlap * (num_steps > 0)) * (name in "ab")
        assert joined(updates)[1:] == ([1, 2, 3, 4, 5, 6][:num_read], FinishReason.ERROR)
        error = updates[-1].error
        assert isinstance(error, EngineDeadError) and error.__cause__ is cause
        assert "illegal memory access" in error.message and "TORCH_USE" not in error.message
    assert len(bench.executor.batches) == num_steps + 1, "nothing is launched after it"
    assert killed(bench).__cause__ is cause
    (event,) = (event for event in bench.events if isinstance(event, EngineDied))
    assert event.num_reqs == 4


def test_a_device_lost_at_a_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_self: PendingSample) -> Any:
        raise RuntimeError(STICKY)

    monkeypatch.setattr(PendingSample, "read", fails)
    for name in "ab":
        bench.add(name, [1], max_tokens=9)
    found = bench.run()
    assert all(isinstance(updates[-1].error, EngineDeadError) for updates in found.values()) and len(found) == 2
    killed(bench)


def test_a_launch_that_fails_on_a_device_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch's error looks harmless; the read of the step before tells the truth."""
    bench = Bench(None, overlap=True, max_num_reqs=1)
    bench.add("a", [1], max_tokens=9)
    bench.loop.step()
    bench.executor.failures = [ValueError("harmless")]
    monkeypatch.setattr(PendingSample, "read", lambda _self: (_ for _ in ()).throw(RuntimeError(STICKY)))
    bench.add("waits", [1])
    found = bench.run()
    assert [type(found[name][0].error) for name in ("a", "waits")] == [EngineDeadError] * 2
    assert not [event for event in bench.events if isinstance(event, StepFailed)]
    killed(bench)


def test_books_that_do_not_add_up_end_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [bench.add(name, [1, 2], max_tokens=2) for name in "ab"]
    bench.loop.step()
    monkeypatch.setattr(bench.allocator, "check_integrity", lambda _owned: None)
    bench.allocator.free(requests[0].pages[-1:])  # so its end frees it twice
    found = bench.run()
    assert {name: type(updates[-1].error) for name, updates in found.items()} == dict.fromkeys("ab", EngineDeadError)
    assert isinstance(killed(bench).__cause__, PageIntegrityError)


def test_an_abort_that_finds_broken_books_ends_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [bench.add(name, [1, 2], max_tokens=5) for name in "ab"]
    bench.loop.step()
    monkeypatch.setattr(bench.allocator, "check_integrity", lambda _owned: None)
    bench.allocator.free(requests[0].pages[-1:])
    bench.loop.abort("a")
    found = bench.run()
    assert {name: len([u for u in us if u.finish_reason]) for name, us in found.items()} == {"a": 1, "b": 1}
    killed(bench)


# --- one request alone ----------------------------------------------------------------------------


class BrokenText:
    """A detokenizer that fails at one token."""

    def push(self, token_id: int) -> str:
        if token_id == 99:
            raise IndexError("no such token")
        return "x"

    def flush(self) -> str:
        raise IndexError("no such token")


@pytest.mark.parametrize("script", [[1, 99, 2], [1, 2, 3]], ids=["push", "flush"])
def test_text_that_cannot_be_made_ends_its_request_alone(bench: Bench, script: list[float]) -> None:
    bench.add("bad", script, max_tokens=3)
    bench.add("good", [1, 2, 3], max_tokens=3)
    bench.loop._updates._texts["bad"]._detokenizer = BrokenText()  # type: ignore[assignment]
    found = bench.run()
    last = found["bad"][-1]
    assert last.finish_reason is FinishReason.ERROR and isinstance(last.error, EngineError) and last.token_ids
    assert joined(found["good"])[1:] == ([1, 2, 3], FinishReason.LENGTH)


def test_text_that_cannot_be_made_at_an_abort(bench: Bench) -> None:
    bench.add("bad", [1, 2, 3], max_tokens=3)
    bench.loop._updates._texts["bad"]._detokenizer = BrokenText()  # type: ignore[assignment]
    bench.loop.abort("bad")
    (update,) = bench.run()["bad"]
    assert update.finish_reason is FinishReason.ERROR and "text" in str(update.error)


def test_an_abort_in_the_middle_of_a_step_waits_for_its_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collector may close an abandoned stream at any point of a step."""
    execute = bench.executor.execute

    def aborts(batch: Any) -> Any:
        if len(bench.executor.batches) == 1:
            bench.loop.abort("a")
            assert not a.is_finished and a.pages
        return execute(batch)

    monkeypatch.setattr(bench.executor, "execute", aborts)
    a = bench.add("a", [1, 2, 3, 4], max_tokens=4)
    bench.add("b", [5, 6, 7, 8], max_tokens=4)
    found = bench.run()
    assert joined(found["a"])[2] is FinishReason.ABORT
    assert joined(found["b"])[1:] == ([5, 6, 7, 8], FinishReason.LENGTH)


# --- deadlines ------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = 1000.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    return advance


def test_a_deadline_ends_a_request_with_what_it_has(bench: Bench, clock: Callable[[float], None]) -> None:
    bench = Bench(None, overlap=bench.overlap, max_num_reqs=2)
    late = bench.add("late", [1] * 50, max_tokens=50, deadline=1005.0)
    bench.add("later", [3] * 6, max_tokens=6, deadline=1010.0)
    waiting = bench.add("waiting", [2], deadline=1005.0)
    bench.add("free", [4, 5], max_tokens=2)
    found: list[RequestUpdate] = []
    for _ in range(3 + bench.overlap):
        found += bench.loop.step()
        clock(1.0)
    clock(5.0)
    rest = bench.run()
    tokens = [u for u in found if u.request_id == "late"]
    assert joined([*tokens, *rest["late"]])[1:] == ([1, 1, 1], FinishReason.TIMEOUT)
    assert late.finish_reason is FinishReason.TIMEOUT and late.error is None and not late.pages
    (only,) = rest["waiting"]
    assert (only.finish_reason, only.token_ids, waiting.error) == (FinishReason.TIMEOUT, (), None)
    assert rest["later"][-1].finish_reason is FinishReason.LENGTH
    assert joined(rest["free"])[1:] == ([4, 5], FinishReason.LENGTH)


def test_deadlines_of_ended_requests_are_forgotten(bench: Bench, clock: Callable[[float], None]) -> None:
    for index in range(20):
        bench.add(str(index), [1], max_tokens=1, deadline=1100.0 + index)
    bench.loop.abort("3")
    bench.run()
    assert len(bench.loop._deadlines) == 0
    clock(500.0)
    bench.add("0", [1, 2], max_tokens=2)  # the same id, without a deadline now
    assert joined(bench.run()["0"])[1:] == ([1, 2], FinishReason.LENGTH)


# --- logits processors ----------------------------------------------------------------------------


def rule_out(token: int) -> Callable[[list[int], torch.Tensor], torch.Tensor]:
    def process(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[token] = -math.inf
        return logits

    return process


def test_a_processor_sees_every_token_and_decides(bench: Bench) -> None:
    seen: list[list[int]] = []

    def count_up(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(list(token_ids))
        return torch.nn.functional.one_hot(torch.tensor(len(token_ids)), len(logits)).float()

    bench.add("a", [7], max_tokens=4, processors=[count_up])
    bench.add("b", [7], max_tokens=4)
    bench.add("c", [7], max_tokens=4, processors=[rule_out(7)], logprobs=1)
    found = bench.run()
    assert joined(found["a"])[1:] == ([3, 4, 5, 6], FinishReason.LENGTH)
    assert seen == [[0, 1, 2, *range(3, 3 + n)] for n in range(4)]
    assert joined(found["b"])[1:] == ([7] * 4, FinishReason.LENGTH), "neighbours' logits are their own"
    assert joined(found["c"])[1] == [0] * 4, "the first of equals once the best is ruled out"
    assert found["c"][0].logprobs[0].top[0][0] == 7, "logprobs are the model's own"


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 1}, {"repetition_penalty": 1.5, "logprobs": 1}])
@pytest.mark.parametrize(
    ("process", "words"),
    [
        (lambda ids, logits: 1 / 0, "ZeroDivisionError"),
        (lambda ids, logits: logits[:3], "expected [272]"),
        (lambda ids, logits: logits.long(), "int64"),
        (lambda ids, logits: None, "NoneType"),
        (lambda ids, logits: logits * NAN, "not finite"),
        (lambda ids, logits: logits - math.inf, "not finite"),
    ],
)
def test_a_processor_that_fails_ends_its_request_alone(
    bench: Bench, process: Any, words: str, params: dict[str, Any]
) -> None:
    bench.add("bad", [1], max_tokens=4, processors=[rule_out(0), process], **params)
    bench.add("good", [1, 2, EOS], max_tokens=4)
    found = bench.run()
    (last,) = found["bad"]
    assert last.finish_reason is FinishReason.ERROR and type(last.error) is EngineError and words in last.error.message
    assert joined(found["good"])[1:] == ([1, 2, EOS], FinishReason.STOP)


def test_a_processor_that_loses_the_device_is_no_affair_of_one_request(bench: Bench) -> None:
    def process(_ids: list[int], _logits: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(STICKY)

    bench.add("bad", [1], processors=[process])
    bench.add("good", [1])
    assert all(isinstance(updates[-1].error, EngineDeadError) for updates in bench.run().values())


def test_steps_overlap_again_when_no_processor_is_left() -> None:
    bench = Bench(None, overlap=True)
    bench.add("a", [1, 1], max_tokens=2, processors=[rule_out(0)])
    request: Request = bench.add("b", [2] * 6, max_tokens=6)
    pending = []
    while bench.loop.has_work():
        bench.loop.step()
        pending.append((request.num_pending_tokens, len(bench.loop._in_flight)))
    assert bench.executor.batches[1].items[0].request.request_id == "a"
    assert pending[-3:] == [(1, 1), (1, 1), (0, 0)]


def test_typed_errors_are_ours() -> None:
    assert issubclass(StepFailedError, OstinatoError) and issubclass(EngineDeadError, EngineError)
