"""Which steps a trace of requests makes: a model of continuous batching with chunked prefill, on a virtual clock.

The engine's own policy: decodes first, then prompts in order of arrival within a budget of tokens. A step takes a fixed
time and a time a token; only through these does the model matter. Called by ``ostinato plan``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.bench.load import TimedRequest
from ostinato.runtime import TrafficHistogram

__all__ = ["StepModel", "traffic_of"]


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """How steps are made and how long they take. The times are of an 8B model on a current GPU.

    Attributes:
        chunk_tokens: tokens in one step.
        max_num_reqs: requests that run at once.
        step_ms: a step's fixed time.
        token_us: its time for each token.
    """

    chunk_tokens: int = 2048
    max_num_reqs: int = 256
    step_ms: float = 8.0
    token_us: float = 10.0


def traffic_of(requests: Sequence[TimedRequest], model: StepModel) -> TrafficHistogram:
    """The steps in which ``requests``, ordered by time, are served."""
    decode: Counter[int] = Counter()
    mixed: Counter[int] = Counter()
    waiting: deque[list[int]] = deque()  # tokens of the prompt still to compute, output tokens
    running: list[int] = []  # output tokens still to come
    now, arrived = 0.0, 0
    while arrived < len(requests) or waiting or running:
        if not waiting and not running:
            now = max(now, requests[arrived].at_seconds)
        while arrived < len(requests) and requests[arrived].at_seconds <= now:
            waiting.append([requests[arrived].prompt_tokens, requests[arrived].output_tokens])
            arrived += 1
        num_prompt_tokens = 0
        begun: list[int] = []
        budget = model.chunk_tokens - len(running)
        while waiting and budget > 0 and len(running) + len(begun) < model.max_num_reqs:
            prompt = waiting[0]
            taken = min(prompt[0], budget)
            prompt[0] -= taken
            budget -= taken
            num_prompt_tokens += taken
            if prompt[0]:
                break  # the rest comes in the next step
            begun.append(prompt[1])
            waiting.popleft()
        num_tokens = len(running) + num_prompt_tokens
        (mixed if num_prompt_tokens else decode)[num_tokens] += 1
        running = [left - 1 for left in (*running, *begun) if left > 1]
        now += model.step_ms / 1e3 + model.token_us / 1e6 * num_tokens
    return TrafficHistogram(decode=decode, mixed=mixed)
