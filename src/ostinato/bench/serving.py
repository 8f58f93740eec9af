"""Drives an engine with timed requests in this thread, and turns token times into latencies.

A request's clock starts when it should have come, not when the engine could take it: a queue that builds up counts.
Called by the scenarios `serve` and `background`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ostinato.bench.load import TimedRequest
from ostinato.bench.statistics import percentiles
from ostinato.engine.request import SamplingParams

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["Served", "latencies", "serve"]


@dataclass(slots=True, kw_only=True)
class Served:
    """What became of one request; times in seconds from the start of the run."""

    at_seconds: float
    first_seconds: float = 0.0
    last_seconds: float = 0.0
    num_tokens: int = 0
    error: str | None = None

    @property
    def ttft_ms(self) -> float:
        """Until the first token."""
        return (self.first_seconds - self.at_seconds) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of the tokens after the first; None if there are none."""
        if self.num_tokens < 2:
            return None
        return (self.last_seconds - self.first_seconds) / (self.num_tokens - 1) * 1e3


def serve(
    llm: LLM,
    requests: Sequence[TimedRequest],
    make_prompt: Callable[[int], list[int]],
    *,
    goes_on: Callable[[float], bool] | None = None,
) -> tuple[list[Served], float]:
    """Run ``requests`` to their end; what became of each, and the seconds that it all took.

    Args:
        goes_on: asked after each step, with the seconds since the first request; once it says no, no more are sent.
            None: all are.
    """
    prompts = [make_prompt(request.prompt_tokens) for request in requests]
    served = [Served(at_seconds=request.at_seconds) for request in requests]
    index_of: dict[str, int] = {}
    num_added, num_to_send = 0, len(requests)
    began = time.perf_counter()
    while num_added < num_to_send or llm.has_work():
        now = time.perf_counter() - began
        while num_added < num_to_send and requests[num_added].at_seconds <= now:
            params = SamplingParams(max_tokens=requests[num_added].output_tokens, ignore_eos=True)
            index_of[llm.add_request(prompts[num_added], params)] = num_added
            num_added += 1
        if not llm.has_work():
            wait = max(0.0, requests[num_added].at_seconds - (time.perf_counter() - began))
            llm.capture_pending(max_seconds=wait)  # as a server does while nothing runs
            time.sleep(max(0.0, requests[num_added].at_seconds - (time.perf_counter() - began)))
            continue
        updates = llm.step()
        now = time.perf_counter() - began
        for update in updates:
            one = served[index_of[update.request_id]]
            if update.error is not None:
                one.error = str(update.error)
            if update.token_ids:
                one.first_seconds = one.first_seconds or now
                one.last_seconds = now
                one.num_tokens += len(update.token_ids)
        if goes_on is not None and not goes_on(now):
            num_to_send = num_added
    return served[:num_added], time.perf_counter() - began


def latencies(served: Sequence[Served], seconds: float, *, ttft_goal_ms: float, tpot_goal_ms: float) -> dict[str, Any]:
    """Throughput, percentiles and goodput: the requests that met both goals (Zhong et al., "DistServe", OSDI 2024)."""
    done = [one for one in served if one.error is None]
    tpots = [tpot for one in done if (tpot := one.tpot_ms) is not None]
    good = [one for one in done if one.ttft_ms <= ttft_goal_ms and (one.tpot_ms is None or one.tpot_ms <= tpot_goal_ms)]
    return {
        "num_requests": len(served),
        "num_failed": len(served) - len(done),
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(done) / seconds, 3),
        "output_tokens_per_s": round(sum(one.num_tokens for one in done) / seconds, 1),
        **percentiles("ttft_ms", [one.ttft_ms for one in done]),
        **percentiles("tpot_ms", tpots),
        **percentiles("latency_ms", [(one.last_seconds - one.at_seconds) * 1e3 for one in done]),
        "goodput_percent": round(100 * len(good) / len(served), 1) if served else None,
        "goodput_per_s": round(len(good) / seconds, 3),
    }
