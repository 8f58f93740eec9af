"""``background``: a steady load on an engine that captures between its steps, and on one that captures first.

Requests come at a rate from the moment at which an engine answers, until nothing is pending and some seconds more;
the engine that captures first gets the same ones. Every half second in which anything happened, counted
from the engine's start, is a row: which share of the steps ran on graphs, how many graphs came, what requests waited.
Then a row for the whole load, and for background one for the seconds after the last graph: its hit rate is to be that
of the other engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ostinato.bench.engine_probe import Coverage, coverage_of
from ostinato.bench.load import poisson_requests
from ostinato.bench.run import Run
from ostinato.bench.serving import Served, serve
from ostinato.bench.statistics import percentiles
from ostinato.engine.config import EngineConfig

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["check", "measure"]

_WINDOW_S: Final = 0.5
_AFTER_S: Final = {"cuda": 4.0, "cpu": 1.0}
"""Of load after the last graph."""
_MOST_S: Final = {"cuda": 90.0, "cpu": 30.0}
"""Of load in all, whatever is pending by then."""


@dataclass(kw_only=True)
class _Watch:
    """Looks at an engine between its steps, and says when the load ends."""

    llm: LLM
    after_seconds: float
    most_seconds: float
    ends_load: bool
    """Whether the load ends, some time after the last graph or at ``most_seconds``; else with its last request."""
    seen: list[tuple[float, Coverage]]
    settled_at: float | None = None

    def __call__(self, now: float) -> bool:
        """Whether more requests are to come; ``now``: seconds of serving."""
        if self.settled_at is None or now - self.seen[-1][0] >= _WINDOW_S:
            coverage = coverage_of(self.llm)
            if self.settled_at is None and not coverage.num_pending:
                self.settled_at = now
                self.seen.append((now, coverage))
            elif now - self.seen[-1][0] >= _WINDOW_S:
                self.seen.append((now, coverage))
        is_settled = self.settled_at is not None and now - self.settled_at >= self.after_seconds
        return not (self.ends_load and (is_settled or now >= self.most_seconds))


def check(run: Run) -> None:
    """Raise if a request does not fit the model."""
    prompt_tokens, output_tokens = _sizes(run)
    run.model_len(prompt_tokens + output_tokens, what="a request")


def measure(run: Run) -> None:
    """For each mode and rate the rows of the engine with background capture, then of the one that captures first."""
    run.evidence.note(
        f"a row for every {_WINDOW_S} s or a step more; seconds count from the engine's start, which start_s took. "
        "ttft_ms: of requests whose first token came in those seconds, from when they should have come; tpot_ms: of "
        "those whose last did"
    )
    run.evidence.note("part settled: after the last graph of background capture")
    for mode in run.config.modes or ("auto",):
        for rate in run.choose(run.config.rates, cuda=(50.0,), cpu=(20.0,)):
            num_requests: int | None = None
            for capture in ("background", "eager"):
                with run.variant(f"{mode} {rate:g}/s {capture}"):
                    num_requests = _serve(run, mode, rate, capture, num_requests)


def _serve(run: Run, mode: str, rate: float, capture: str, num_requests: int | None) -> int:
    """Add the rows of one engine; how many requests it got. ``num_requests``: so many it gets; None: see `_Watch`."""
    prompt_tokens, output_tokens = _sizes(run)
    kind = run.target.device.type
    requests = poisson_requests(
        rate=rate,
        num_requests=num_requests or max(2, round(1.5 * rate * _MOST_S[kind])),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seed=run.config.seed,
    )
    settings: dict[str, Any] = {"mode": mode, "capture": capture}
    if capture == "eager":  # which takes no time between steps
        settings["capture_share"] = EngineConfig().capture_share
    if run.config.engine.max_model_len is None:
        settings["max_model_len"] = run.model_len(prompt_tokens + output_tokens, what="a request")
    prompts = iter(run.prompts(len(requests), prompt_tokens))
    began = time.perf_counter()
    with run.engine(f"{mode} {rate:g}/s {capture}", **settings) as llm:
        start_seconds = time.perf_counter() - began
        watch = _Watch(
            llm=llm,
            after_seconds=_AFTER_S[kind],
            most_seconds=_MOST_S[kind],
            ends_load=num_requests is None,
            seen=[(0.0, coverage_of(llm))],
        )
        served, all_seconds = serve(llm, requests, lambda _n: next(prompts), goes_on=watch)
        watch.seen.append((all_seconds, coverage_of(llm)))
    row: dict[str, Any] = {"mode": mode, "rate": rate, "capture": capture}
    for (since, before), (until, after) in zip(watch.seen, watch.seen[1:], strict=False):
        if until > since and after != before:  # the load may end just behind a look
            moments = {"part": "window", "seconds": round(start_seconds + until, 3)}
            run.evidence.add(row | moments | _facts(before, after) | _waits(served, since, until))
    whole = {"start_s": round(start_seconds, 3), "load_s": round(all_seconds, 3), "num_requests": len(served)}
    first, last = watch.seen[0][1], watch.seen[-1][1]
    run.evidence.add(row | {"part": "all"} | whole | _facts(first, last) | _waits(served, 0.0, all_seconds))
    if capture == "background":
        if watch.settled_at is None:
            run.evidence.note(f"{mode} {rate:g}/s: {last.num_pending} graphs were pending when the load ended")
        else:
            settled = next(coverage for at, coverage in watch.seen if at == watch.settled_at)
            after_s = {"settled_s": round(start_seconds + watch.settled_at, 3)}
            waits = _waits(served, watch.settled_at, all_seconds)
            run.evidence.add(row | {"part": "settled"} | after_s | _facts(settled, last) | waits)
    return len(served)


def _facts(before: Coverage, after: Coverage) -> dict[str, Any]:
    """What steps ran as between two looks, and which graphs came."""
    steps = after.num_steps - before.num_steps
    on_graphs = steps - (after.num_eager - before.num_eager)
    return {
        "steps": steps,
        "hit_percent": round(100 * on_graphs / steps, 2) if steps else None,
        "captured": after.num_graphs - before.num_graphs,
        "graphs": after.num_graphs,
        "pending": after.num_pending,
    }


def _waits(served: Iterable[Served], since: float, until: float) -> dict[str, Any]:
    done = [one for one in served if one.error is None]
    firsts = [one.ttft_ms for one in done if one.num_tokens and since < one.first_seconds <= until]
    rates = [one.tpot_ms for one in done if since < one.last_seconds <= until]
    return {
        **percentiles("ttft_ms", firsts),
        **percentiles("tpot_ms", [tpot for tpot in rates if tpot is not None]),
    }


def _sizes(run: Run) -> tuple[int, int]:
    """Tokens of a prompt and of an answer."""
    return run.config.prompt_tokens or 128, run.config.output_tokens or (64 if run.is_cuda else 16)
