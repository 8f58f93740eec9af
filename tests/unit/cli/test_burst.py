"""The demo's traffic: who arrives when, and how it is played."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ostinato.cli.answers import Answer
from ostinato.cli.burst import Arrival, burst, play
from ostinato.engine.config import EngineConfig
from ostinato.engine.request import FinishReason, SamplingParams
from ostinato.errors import RequestError


class Notes:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def arrived(self, index: int, answer: Answer) -> None:
        self.seen.append(("arrived", index))

    def moved(self, index: int, answer: Answer) -> None:
        self.seen.append(("ended" if answer.finish_reason else "moved", index))


class Silent:
    def start(self, label: str, total: int | None, unit: str) -> None: ...

    def advance(self, n: int) -> None: ...

    def finish(self) -> None: ...


def at(step: int, prompt: str, max_tokens: int = 9) -> Arrival:
    return Arrival(step=step, prompt=prompt, params=SamplingParams(max_tokens=max_tokens))


@pytest.fixture
def llm(fake_llm: Any) -> Any:
    return fake_llm(config=EngineConfig(), progress=Silent())


def test_the_burst_is_mixed_and_staggered() -> None:
    arrivals = burst(32)
    steps = [arrival.step for arrival in arrivals]
    assert len(arrivals) == 8
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
    limits = {arrival.params.max_tokens for arrival in arrivals}
    assert max(limits) == 32
    assert len(limits) > 2
    assert all(arrival.params.is_greedy for arrival in arrivals)


def test_every_answer_may_have_a_token() -> None:
    assert {arrival.params.max_tokens for arrival in burst(1)} == {1}


def test_no_tokens_at_all_is_an_error() -> None:
    with pytest.raises(RequestError):
        burst(0)


def test_answers_are_whole_and_in_the_order_of_arrival(llm: Any) -> None:
    (first, second), _ = play(llm, [at(0, "a bb ccc"), at(1, "dd", 1)], Notes())
    assert (first.text, first.token_ids) == ("ccc bb a ", [3, 2, 1])
    assert (second.text, second.token_ids) == ("dd ", [2])
    assert first.finish_reason is FinishReason.STOP


def test_each_step_is_timed_without_what_the_watcher_does(llm: Any) -> None:
    class Slow(Notes):
        def moved(self, index: int, answer: Answer) -> None:
            time.sleep(0.05)

    began = time.perf_counter()
    _, step_seconds = play(llm, [at(0, "a b c")], Slow())
    assert len(step_seconds) == 3
    assert 0 < sum(step_seconds) <= time.perf_counter() - began - 3 * 0.05


def test_requests_come_at_their_step_while_others_run(llm: Any) -> None:
    notes = Notes()
    play(llm, [at(0, "a b c d"), at(2, "e")], notes)
    assert llm.log == [("a b c d", 0), ("e", 2)]
    assert notes.seen[:4] == [("arrived", 0), ("moved", 0), ("moved", 0), ("arrived", 1)]


def test_an_idle_engine_does_not_wait_for_a_late_request(llm: Any) -> None:
    play(llm, [at(0, "a"), at(50, "b"), at(51, "c d")], Notes())
    assert [prompt for prompt, _ in llm.log] == ["a", "b", "c d"]
    assert llm.log[-1][1] < 5


@pytest.mark.parametrize("has_template", [True, False])
def test_prompts_are_chats_only_where_the_model_has_a_template(
    fake_llm: Any, monkeypatch: pytest.MonkeyPatch, has_template: bool
) -> None:
    chats: list[Any] = []
    monkeypatch.setattr(fake_llm, "has_chat_template", has_template)
    monkeypatch.setattr(fake_llm, "add_chat", lambda self, m, p: chats.append(m) or self.add_request("x", p))
    play(fake_llm(config=EngineConfig(), progress=Silent()), [at(0, "a")], Notes())
    assert chats == ([[{"role": "user", "content": "a"}]] if has_template else [])


def test_a_request_that_fails_ends_the_burst(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        error = RequestError("not this one")

    monkeypatch.setattr(llm, "step", lambda: [Failed()])
    with pytest.raises(RequestError, match="not this one"):
        play(llm, [at(0, "a")], Notes())
