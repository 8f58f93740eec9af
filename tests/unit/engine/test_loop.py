"""The loop with a scripted executor: how requests end, what is delivered when, and what an error may not lose."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostinato.engine.loop import EngineLoop
from ostinato.engine.request import FinishReason
from ostinato.engine.text import Tokenizer
from ostinato.engine.updates import RequestUpdate
from ostinato.errors import ConfigError, EngineError, OutOfMemoryError, RequestError
from ostinato.telemetry import RequestPreempted
from ostinato.testing.scripted_loop import EOS, VOCAB_SIZE
from ostinato.testing.scripted_loop import ScriptedLoop as Bench
from ostinato.testing.tiny_models import write_tiny_model

NAN = math.nan


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(write_tiny_model(tmp_path_factory.mktemp("tiny"), has_weights=False))


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def bench(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Bench:
    return Bench(tokenizer, overlap=request.param)


def joined(updates: Sequence[RequestUpdate]) -> tuple[str, list[int], FinishReason | None]:
    """Text, tokens and the finish reason, which only the last update may have."""
    assert all(update.finish_reason is None for update in updates[:-1])
    text = "".join(update.text for update in updates)
    return text, [token for update in updates for token in update.token_ids], updates[-1].finish_reason


def letters(text: str) -> list[int]:
    """Tokens of an ASCII text, a byte each."""
    return list(text.encode())


# --- how a request ends ---------------------------------------------------------------------------


def test_max_tokens(bench: Bench) -> None:
    bench.add("a", letters("hello"), max_tokens=5)
    assert joined(bench.run()["a"]) == ("hello", letters("hello"), FinishReason.LENGTH)


def test_one_token(bench: Bench) -> None:
    bench.add("a", letters("h"), max_tokens=1)
    (update,) = bench.run()["a"]
    assert (update.text, update.token_ids, update.finish_reason) == ("h", (104,), FinishReason.LENGTH)


def test_eos_ends_and_is_no_text(bench: Bench) -> None:
    bench.add("a", [*letters("ab"), EOS, *letters("cd")])
    assert joined(bench.run()["a"]) == ("ab", [97, 98, EOS], FinishReason.STOP)


def test_eos_as_the_first_token(bench: Bench) -> None:
    bench.add("a", [EOS])
    assert joined(bench.run()["a"]) == ("", [EOS], FinishReason.STOP)


def test_ignore_eos(bench: Bench) -> None:
    bench.add("a", [97, EOS, 98, EOS], max_tokens=4, ignore_eos=True)
    assert joined(bench.run()["a"]) == ("ab", [97, EOS, 98, EOS], FinishReason.LENGTH)


def test_stop_token_ids_end_even_where_eos_is_ignored(bench: Bench) -> None:
    bench.add("a", [97, EOS, 98, 99], ignore_eos=True, stop_token_ids=(98, 5))
    assert joined(bench.run()["a"]) == ("a", [97, EOS, 98], FinishReason.STOP)


def test_a_stop_token_wins_over_the_limit(bench: Bench) -> None:
    bench.add("a", [97, EOS], max_tokens=2)
    assert joined(bench.run()["a"])[2] is FinishReason.STOP


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_the_model_length_ends(tokenizer: Tokenizer, overlap: bool) -> None:
    bench = Bench(tokenizer, overlap=overlap, max_model_len=8)
    bench.add("a", letters("abcdefgh"), prompt=3, max_tokens=50)
    assert joined(bench.run()["a"]) == ("abcde", letters("abcde"), FinishReason.LENGTH)


@pytest.mark.parametrize("others", [0, 3])
def test_a_stop_string_across_tokens(bench: Bench, others: int) -> None:
    for n in range(others):
        bench.add(f"other {n}", letters("xSTyyy"), max_tokens=6, stop=("nothing",))
    bench.add("a", letters("go STOP on"), stop=("STOP", "zzz"))
    found = bench.run()
    text, tokens, reason = joined(found["a"])
    assert (text, reason) == ("go ", FinishReason.STOP)
    assert tokens == letters("go STOP"), "nothing is computed past the stop string"
    assert "S" not in "".join(u.text for u in found["a"]), "part of the stop string was let out"
    for n in range(others):
        assert joined(found[f"other {n}"]) == ("xSTyyy", letters("xSTyyy"), FinishReason.LENGTH)


def test_a_held_back_start_of_a_stop_string_comes_at_the_end(bench: Bench) -> None:
    bench.add("a", letters("go STO"), max_tokens=6, stop=("STOP",))
    updates = bench.run()["a"]
    assert [u.text for u in updates] == ["g", "o", " ", "", "", "STO"]
    assert joined(updates)[2] is FinishReason.LENGTH


def test_held_back_text_comes_before_eos(bench: Bench) -> None:
    bench.add("a", [*letters("ST"), EOS], stop=("STOP",))
    assert joined(bench.run()["a"]) == ("ST", [*letters("ST"), EOS], FinishReason.STOP)


def test_half_characters_are_held_back(bench: Bench) -> None:
    emoji = list("é😀".encode())
    bench.add("a", emoji, max_tokens=len(emoji))
    assert [u.text for u in bench.run()["a"]] == ["", "é", "", "", "", "😀"]


def test_an_unfinished_character_is_shown_at_the_end(bench: Bench) -> None:
    bench.add("a", [97, 0xF0, 0x9F], max_tokens=3)
    text, _, reason = joined(bench.run()["a"])
    assert text.startswith("a\ufffd") and reason is FinishReason.LENGTH


# --- overlap: a step is launched before the tokens of the step before are read -------------------------


def test_a_step_is_launched_before_the_one_before_is_read(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, overlap=True)
    request = bench.add("a", letters("abc"), max_tokens=3)
    assert bench.loop.step() == [] and request.num_pending_tokens == 1
    (update,) = bench.loop.step()
    assert (update.text, len(bench.executor.batches), request.output_token_ids) == ("a", 2, letters("a"))
    bench.run()
    assert len(bench.executor.batches) == 3, "the end by max_tokens is known before the token is"


def test_an_end_by_token_costs_one_step_and_no_token(tokenizer: Tokenizer) -> None:
    for overlap, num_steps in ((False, 2), (True, 3)):
        bench = Bench(tokenizer, overlap=overlap)
        bench.add("a", [7, EOS, 9, 9], max_tokens=4)
        assert joined(bench.run()["a"])[1:] == ([7, EOS], FinishReason.STOP)
        assert len(bench.executor.batches) == num_steps


def test_an_id_may_be_used_again_while_the_step_too_many_is_unread(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, overlap=True)
    bench.add("a", [7, EOS, NAN], max_tokens=4)
    updates = [update for _ in range(3) for update in bench.loop.step()]
    assert updates[-1].finish_reason is FinishReason.STOP
    bench.add("a", [5, 6], max_tokens=2)
    assert joined(bench.run()["a"])[1:] == ([5, 6], FinishReason.LENGTH)


def test_the_host_time_is_kept(bench: Bench) -> None:
    bench.add("a", letters("abc"), max_tokens=3)
    bench.run()
    told = bench.loop.host_time.to_dict()
    assert told["steps"] == 3 and told["busy_seconds"] > 0 and told["waiting_seconds"] > 0
    assert told["busy_us_per_step"] == pytest.approx(told["busy_seconds"] / 3 * 1e6, abs=0.1)


# --- abort ------------------------------------------------------------------------------------------


def test_settling_reads_what_is_in_flight_and_the_next_step_tells(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, overlap=True)
    request = bench.add("a", letters("hello"), max_tokens=5)
    assert bench.loop.step() == [] and request.num_pending_tokens == 1, "launched, not read"
    bench.loop.settle()
    bench.loop.settle()
    assert request.num_pending_tokens == 0 and request.num_output_tokens == 1 and bench.loop.has_work()
    first = bench.loop.step()
    assert [update.text for update in first] == ["h"]
    text, tokens, reason = joined([*first, *bench.run()["a"]])
    assert (text, tokens, reason) == ("hello", letters("hello"), FinishReason.LENGTH)


def test_abort_in_the_middle(bench: Bench) -> None:
    bench.add("a", letters("abcdefgh"), max_tokens=8, stop=("cX",))
    bench.add("b", letters("12345678"), max_tokens=8)
    for _ in range(3 + bench.overlap):
        bench.loop.step()
    bench.loop.abort("a")
    bench.loop.abort("a")
    bench.loop.abort("unknown")
    assert bench.loop.has_work()
    found = bench.run()
    (last,) = found["a"]
    assert (last.finish_reason, last.token_ids, last.error) == (FinishReason.ABORT, (), None)
    assert last.text == "c", "what was held back belongs to the caller"
    assert joined(found["b"]) == ("45678", letters("45678"), FinishReason.LENGTH)


def test_abort_of_all_is_delivered_by_a_step_that_computes_nothing(bench: Bench) -> None:
    bench.add("waits", [1])
    bench.loop.abort("waits")
    assert bench.loop.has_work()
    (update,) = bench.loop.step()
    assert update.finish_reason is FinishReason.ABORT
    assert not bench.loop.has_work() and bench.executor.batches == []
    assert bench.loop.step() == []


def test_an_id_may_be_used_again_after_its_request_has_ended(bench: Bench) -> None:
    bench.add("a", letters("ab"), max_tokens=2)
    with pytest.raises(RequestError, match="in use"):
        bench.add("a", letters("cd"), max_tokens=2)
    bench.executor.scripts["a"] = letters("ab")
    assert joined(bench.run()["a"])[0] == "ab"
    bench.add("a", letters("xyz"), max_tokens=3)
    assert joined(bench.run()["a"])[0] == "xyz"


def test_an_id_is_in_use_until_its_last_update_is_delivered(tokenizer: Tokenizer) -> None:
    """Or the last update of the one would be taken for that of the other."""
    bench = Bench(tokenizer, num_pages=5)
    bench.add("aborted", letters("ab"), max_tokens=2)
    bench.loop.abort("aborted")
    bench.add("never fits", [], prompt=40)
    for name in ("aborted", "never fits"):
        with pytest.raises(RequestError, match="in use"):
            bench.add(name, letters("cd"), max_tokens=2)
    assert {u.request_id: u.finish_reason for u in bench.loop.step()} == {
        "aborted": FinishReason.ABORT,
        "never fits": FinishReason.ERROR,
    }
    for name in ("aborted", "never fits"):
        bench.add(name, letters("cd"), max_tokens=2)
    assert {name: joined(updates)[0] for name, updates in bench.run().items()} == {"aborted": "cd", "never fits": "cd"}


# --- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}, {"logprobs": 2}])
def test_nan_logits_end_their_request_alone(bench: Bench, params: dict[str, Any]) -> None:
    before = bench.add("before", letters("1234"), max_tokens=4)
    bad = bench.add("bad", [97, NAN, 98], max_tokens=4, **params)
    after = bench.add("after", letters("5678"), max_tokens=4)
    found = bench.run()
    *_, last = found["bad"]
    assert last.finish_reason is FinishReason.ERROR and isinstance(last.error, EngineError)
    assert "bad" in last.error.message and last.token_ids == ()
    assert bad.finish_reason is FinishReason.ERROR and bad.error is last.error
    assert len(bad.output_token_ids) == 1
    assert joined(found["before"]) == ("1234", letters("1234"), FinishReason.LENGTH)
    assert joined(found["after"]) == ("5678", letters("5678"), FinishReason.LENGTH)
    assert before.error is None and after.error is None


def test_all_rows_nan(bench: Bench) -> None:
    for name in "ab":
        bench.add(name, [NAN])
    found = bench.run()
    assert {name: u[-1].finish_reason for name, u in found.items()} == dict.fromkeys("ab", FinishReason.ERROR)


def test_an_interrupt_leaves_the_step_repeatable(bench: Bench) -> None:
    bench.add("a", letters("abc"), max_tokens=3)
    bench.add("b", letters("12345"), max_tokens=5, prompt=40)  # two chunks
    seen = [bench.loop.step()]
    bench.executor.failures = [KeyboardInterrupt("planted"), KeyboardInterrupt("planted again")]
    for words in ("planted", "planted again"):
        with pytest.raises(KeyboardInterrupt, match=words):
            bench.loop.step()
    first, second = bench.executor.batches[-2:]
    assert first.items == second.items, "the same step is scheduled again"
    assert all(request.num_pending_tokens == 0 for request in second.sampling), "what it is fed was read before"
    found = bench.run()
    for update in seen[0]:
        found.setdefault(update.request_id, []).insert(0, update)
    assert joined(found["a"]) == ("abc", letters("abc"), FinishReason.LENGTH)
    assert joined(found["b"]) == ("12345", letters("12345"), FinishReason.LENGTH)


@pytest.mark.parametrize("failure", [RuntimeError("planted"), KeyboardInterrupt()], ids=["failure", "interrupt"])
def test_an_exception_loses_no_update_that_was_due(tokenizer: Tokenizer, failure: BaseException) -> None:
    """An abort and a request that can never fit wait for delivery when the step fails."""
    bench = Bench(tokenizer, num_pages=5)
    bench.add("runs", letters("ab"), max_tokens=2)
    bench.add("aborted", letters("xy"), max_tokens=2)
    bench.add("never fits", [], prompt=40)
    bench.loop.abort("aborted")
    bench.executor.failures = [failure]
    if isinstance(failure, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            bench.loop.step()
    found = bench.run()
    assert {name: u[-1].finish_reason for name, u in found.items()} == {
        "runs": FinishReason.LENGTH if isinstance(failure, KeyboardInterrupt) else FinishReason.ERROR,
        "aborted": FinishReason.ABORT,
        "never fits": FinishReason.ERROR,
    }


def test_a_request_that_never_fits_is_delivered_with_numbers(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, num_pages=5)  # 16 tokens
    bench.add("big", [], prompt=17)
    bench.add("small", letters("ab"), max_tokens=2)
    found = bench.run()
    (last,) = found["big"]
    assert last.finish_reason is FinishReason.ERROR and isinstance(last.error, OutOfMemoryError)
    assert "17" in last.error.message and "16" in last.error.message
    assert joined(found["small"]) == ("ab", letters("ab"), FinishReason.LENGTH)


def test_a_request_that_outgrows_the_cache_ends_alone(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, num_pages=5)
    bench.add("grows", letters("x" * 60), max_tokens=60)
    bench.add("small", letters("ab"), max_tokens=2)
    found = bench.run()
    assert isinstance(found["grows"][-1].error, OutOfMemoryError)
    assert found["grows"][-1].finish_reason is FinishReason.ERROR
    text = "".join(update.text for update in found["grows"])
    assert text == "x" * 14, "13 slots besides the prompt, and the token sampled from the last"
    assert joined(found["small"])[2] is FinishReason.LENGTH


# --- what else is delivered ---------------------------------------------------------------------------


def test_logprobs(bench: Bench) -> None:
    request = bench.add("a", letters("abc"), max_tokens=3, logprobs=2)
    bench.add("plain", letters("abc"), max_tokens=3)
    found = bench.run()
    assert all(update.logprobs == () for update in found["plain"])
    flat = [entry for update in found["a"] for entry in update.logprobs]
    assert [entry.token_id for entry in flat] == letters("abc") and request.logprobs == flat
    expected = 10 - math.log(math.exp(10) + VOCAB_SIZE - 1)
    for entry in flat:
        assert entry.rank == 1 and entry.logprob == pytest.approx(expected, abs=1e-5)
        assert entry.top[0] == (entry.token_id, entry.logprob) and len(entry.top) == 2


def test_preemption_is_an_event_and_changes_no_answer(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, num_pages=8)  # 28 tokens for two requests of 23
    for name in "ab":
        bench.add(name, letters(name * 20), max_tokens=20)
    found = bench.run()
    events = [event for event in bench.events if isinstance(event, RequestPreempted)]
    assert events and {event.request_id for event in events} == {"b"}, "the youngest gives way"
    assert all(event.computed_tokens > 0 for event in events)
    for name in "ab":
        assert joined(found[name]) == (name * 20, letters(name * 20), FinishReason.LENGTH)


def test_chunks_of_a_prompt_bring_nothing(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, max_num_batched_tokens=8)
    bench.add("a", letters("ab"), max_tokens=2, prompt=20)
    assert [bench.loop.step() for _ in range(2)] == [[], []]
    assert [update.text for update in bench.loop.step()] == ["a"]


def test_without_a_tokenizer_there_are_tokens_and_no_text() -> None:
    bench = Bench(None)
    bench.add("a", [5, 6, EOS], logprobs=0)
    bench.add("b", [7, 8], max_tokens=2)
    found = bench.run()
    assert joined(found["a"]) == ("", [5, 6, EOS], FinishReason.STOP)
    assert joined(found["b"]) == ("", [7, 8], FinishReason.LENGTH)


def test_nothing_to_do(bench: Bench) -> None:
    assert not bench.loop.has_work() and bench.loop.step() == []


def test_the_tokenizer_of_this_file_has_a_byte_a_token(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert tokenizer.decode(letters("go STOP")) == "go STOP" and tokenizer.eos_token_ids == {EOS}


# --- requests that are not streamed -------------------------------------------------------------------


def answer(bench: Bench, script: Sequence[float], *, is_streamed: bool, **params: Any) -> tuple[Any, ...]:
    """What becomes of one request beside a stream: text, tokens, log-probabilities, end; and how many updates."""
    bench.add("other", letters("o" * 12), max_tokens=12)
    bench.add("a", script, is_streamed=is_streamed, **params)
    updates = bench.run()["a"]
    error = None if updates[-1].error is None else updates[-1].error.message
    logprobs = [entry.token_id for update in updates for entry in update.logprobs]
    assert is_streamed or len(updates) == 1
    return (*joined(updates), logprobs, error)


@pytest.mark.parametrize(
    ("script", "params"),
    [
        (letters("hello"), {"max_tokens": 5}),
        (letters("h"), {"max_tokens": 1}),
        (letters("hello"), {"max_tokens": 5, "stop": ("ll",)}),
        (letters("hello"), {"max_tokens": 4, "stop": ("lx", "lly")}),
        ([*letters("hel"), EOS], {"max_tokens": 9}),
        ([*letters("hel"), EOS, *letters("lo")], {"max_tokens": 6, "ignore_eos": True}),
        (letters("hello"), {"max_tokens": 9, "stop_token_ids": (ord("o"),)}),
        (letters("hello"), {"max_tokens": 5, "logprobs": 0}),
        (list("h\u00e4\U0001f600".encode()), {"max_tokens": 6}),
        ([*letters("he"), NAN], {"max_tokens": 9}),
        (letters("x" * 80), {"max_tokens": 80}),
    ],
    ids=["length", "one", "stop", "held", "eos", "eos ignored", "stop token", "logprobs", "cut", "not finite", "model"],
)
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_one_update_at_the_end_says_what_many_said(
    tokenizer: Tokenizer, overlap: bool, script: list[float], params: dict[str, Any]
) -> None:
    streamed, whole = (
        answer(Bench(tokenizer, overlap=overlap), script, is_streamed=is_streamed, **params)
        for is_streamed in (True, False)
    )
    assert whole == streamed


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_an_aborted_answer_has_what_came_so_far(bench: Bench, stop: tuple[str, ...]) -> None:
    request = bench.add("a", letters("hello"), max_tokens=9, is_streamed=False, stop=stop)
    while len(request.output_token_ids) < 3:
        assert bench.loop.step() == []
    bench.loop.abort("a")
    (update,) = bench.run()["a"]
    assert (update.text, update.token_ids, update.finish_reason) == ("hel", tuple(letters("hel")), FinishReason.ABORT)


def test_an_answer_keeps_what_came_before_its_step_failed(bench: Bench) -> None:
    bench.add("a", letters("hello"), max_tokens=9, is_streamed=False)
    bench.executor.failures = [None, None, None, ValueError("planted")]
    (update,) = bench.run()["a"]
    assert (update.text, update.finish_reason) == ("hel", FinishReason.ERROR) and update.error is not None


def calls_of_a_step(num_reqs: int) -> int:
    """Python functions that one step of decodes calls, at its cheapest: no page is added."""
    bench = Bench(None, overlap=True, max_num_reqs=num_reqs, num_pages=1 + 40 * num_reqs, max_num_batched_tokens=1024)
    for number in range(num_reqs):
        bench.add(str(number), [5], max_tokens=60, is_streamed=False)
    executor, output = bench.executor, None

    def execute(batch: Any) -> Any:  # the scripted executor walks over the requests
        nonlocal output
        if output is None or len(output.token_ids) != len(batch.sampling):
            output = executor.execute(batch)
        return output

    bench.loop._executor = SimpleNamespace(execute=execute)
    found = []
    for _ in range(20):
        calls = 0

        def count(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            bench.loop.step()
        finally:
            sys.setprofile(None)
        found.append(calls)
    assert len(bench.scheduler.running) == num_reqs
    return min(found)


def test_a_step_of_decodes_does_not_walk_over_its_requests() -> None:
    few, many = calls_of_a_step(2), calls_of_a_step(60)
    assert many <= few + 8, "one request in 64 is brought up to date"


def test_a_loop_that_holds_less_than_its_scheduler_is_refused(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    with pytest.raises(ConfigError, match="max_model_len"):
        EngineLoop(bench.executor, bench.scheduler, tokenizer=None, eos_token_ids=(), max_model_len=63)
