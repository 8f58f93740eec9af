"""The traffic of `ostinato demo`: eight chats of mixed length, some of which arrive while others run.

Arrivals are counted in engine steps and not in seconds, so that two engines that are given the same
burst see the same batches at every step and their answers may be compared token by token.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ostinato.cli.answers import Answer
from ostinato.cli.prompts import has_chat_template
from ostinato.engine.request import SamplingParams

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["Arrival", "Watcher", "burst", "play"]

_LONG = (
    "Summarise in one sentence: A lighthouse keeper on a small island wrote one page in his diary each night. "
    "He wrote about the wind, the ships that passed and the birds that came with the spring. When the light "
    "was made automatic he left the island, and the diaries were found sixty years later behind a wall."
)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One request: before which step it comes, what it asks and how it is answered."""

    step: int
    prompt: str
    params: SamplingParams


class Watcher(Protocol):
    """Told of what happens, as it happens."""

    def arrived(self, index: int, answer: Answer) -> None:
        """Request ``index`` was given to the engine."""

    def moved(self, index: int, answer: Answer) -> None:
        """Request ``index`` got new text, or ended."""


def burst(max_tokens: int) -> list[Arrival]:
    """The demo's requests in order of arrival; each answer has at most ``max_tokens`` or a share of it.

    Raises:
        RequestError: ``max_tokens`` is not positive.
    """
    longest = SamplingParams(max_tokens=max_tokens)
    script = [
        (0, 1.0, "What is the capital of France?"),
        (0, 0.5, "Name three primary colours."),
        (0, 1.0, _LONG),
        (0, 0.25, "Say hello in Italian."),
        (4, 0.75, "What is an ostinato in music?"),
        (4, 1.0, "Give me one tip for learning to play the piano."),
        (9, 0.5, "How many legs does a spider have?"),
        (14, 1.0, "Write one sentence about the sea."),
    ]
    return [
        Arrival(
            step=step,
            prompt=prompt,
            params=dataclasses.replace(longest, max_tokens=max(1, round(share * max_tokens))),
        )
        for step, share, prompt in script
    ]


def play(llm: LLM, arrivals: Sequence[Arrival], watcher: Watcher) -> tuple[list[Answer], list[float]]:
    """Run ``arrivals`` through the engine, greedily.

    Returns:
        The answers in the order of ``arrivals``, and the wall time of each engine step in seconds.

    Raises:
        OstinatoError: a request failed; the demo's own requests should not.
    """
    answers = [Answer(prompt=arrival.prompt) for arrival in arrivals]
    index_of: dict[str, int] = {}
    step_seconds: list[float] = []
    step, num_given = 0, 0
    while num_given < len(arrivals) or llm.has_work():
        if not llm.has_work() and num_given < len(arrivals):
            step = max(step, arrivals[num_given].step)  # all answered before the next one comes: do not wait for it
        while num_given < len(arrivals) and arrivals[num_given].step <= step:
            index_of[_add(llm, arrivals[num_given])] = num_given
            watcher.arrived(num_given, answers[num_given])
            num_given += 1
        began = time.perf_counter()
        updates = llm.step()
        step_seconds.append(time.perf_counter() - began)
        for update in updates:
            if update.error is not None:
                raise update.error
            index = index_of[update.request_id]
            answer = answers[index]
            answer.text += update.text
            answer.token_ids += update.token_ids
            answer.finish_reason = update.finish_reason
            watcher.moved(index, answer)
        step += 1
    return answers, step_seconds


def _add(llm: LLM, arrival: Arrival) -> str:
    if has_chat_template(llm):
        return llm.add_chat([{"role": "user", "content": arrival.prompt}], arrival.params)
    return llm.add_request(arrival.prompt, arrival.params)
