"""``serve``: requests at a rate (Poisson arrivals, seeded) or from a trace, through one engine in this process.

No HTTP is in it: requests go in by ``add_request``, and the loop is ``step``. Each repeat is a row of its own, since
percentiles of percentiles say nothing.
"""

from __future__ import annotations

from typing import Any

from ostinato.bench.end_to_end import steps_between
from ostinato.bench.load import TimedRequest, clipped, poisson_requests, read_trace
from ostinato.bench.run import Run
from ostinato.bench.serving import latencies, serve
from ostinato.errors import ConfigError

__all__ = ["check", "measure"]


def check(run: Run) -> None:
    """Raise if the trace is malformed, nothing of it fits, or the requests asked for do not fit the model."""
    _loads(run)


def measure(run: Run) -> None:
    """A row for each mode, load and repeat."""
    config = run.config
    goals = {"ttft_goal_ms": config.ttft_goal_ms or 200.0, "tpot_goal_ms": config.tpot_goal_ms or 20.0}
    run.evidence.config["goals"] = goals
    run.evidence.note("ttft_ms counts from the moment at which a request should have come; the queue is in it")
    model_len = _model_len(run)
    for mode in config.modes or ("full_and_piecewise",):
        with run.variant(mode), run.engine(mode, mode=mode, max_model_len=model_len) as llm:
            warm = TimedRequest(at_seconds=0.0, prompt_tokens=8, output_tokens=4)
            serve(llm, [warm] * 4, lambda n: run.prompts(1, n)[0])
            for label, requests, num_skipped in _loads(run):
                for repeat in range(run.repeats):
                    with run.variant(f"{mode} {label}"):
                        before = llm.stats()
                        served, seconds = serve(llm, requests, lambda n: run.prompts(1, n)[0])
                        row: dict[str, Any] = {"mode": mode, "load": label, "repeat": repeat}
                        row |= {"rate": _rate(requests), "num_skipped": num_skipped}
                        row["text"] = llm.tokenizer is not None
                        row |= latencies(served, seconds, **goals)
                        run.evidence.add(row | {"steps_by_runtime_mode": steps_between(before, llm.stats())})


def _loads(run: Run) -> list[tuple[str, list[TimedRequest], int]]:
    """Label, requests, and how many were left out because the context cannot hold them."""
    config = run.config
    if config.trace is not None:
        speed = config.trace_speed or 1.0
        found = read_trace(config.trace, speed=speed, num_requests=config.num_requests or (2000 if run.is_cuda else 50))
        fitting, num_skipped = clipped(found, _model_len(run))
        if not fitting:
            raise ConfigError(
                f"no request of the trace fits a context of {_model_len(run)} tokens", fix="raise max_model_len"
            )
        return [(f"{config.trace.stem} x{speed:g}", fitting, num_skipped)]
    prompt_tokens, output_tokens = config.prompt_tokens or 128, config.output_tokens or (128 if run.is_cuda else 16)
    run.model_len(prompt_tokens + output_tokens, what="a request")
    loads = []
    for rate in run.choose(config.rates, cuda=(8.0, 32.0, 64.0), cpu=(4.0,)):
        num_requests = config.num_requests or max(16, round(rate * (15 if run.is_cuda else 2)))
        requests = poisson_requests(
            rate=rate,
            num_requests=num_requests,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seed=config.seed,
        )
        loads.append((f"poisson {rate:g}/s", requests, 0))
    return loads


def _model_len(run: Run) -> int:
    """What was asked for; else enough for the usual traces, as far as the model goes."""
    return run.config.engine.max_model_len or min(run.target.max_model_len, 8192 if run.is_cuda else 2048)


def _rate(requests: list[TimedRequest]) -> float | None:
    """Requests a second that were really sent."""
    seconds = requests[-1].at_seconds
    return round((len(requests) - 1) / seconds, 3) if seconds > 0 else None
