"""``prefill``: time to first token of one request by mode and prompt length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.bench.end_to_end import EngineSeconds, GenerateSeconds, measure_peers, measure_ttfts, steps_between
from ostinato.bench.floor import floors
from ostinato.bench.profiling import IDLE_NOTE, idle_percent, profile_rows, profiled_step
from ostinato.bench.run import Run
from ostinato.bench.statistics import summary

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["check", "measure"]


def check(run: Run) -> None:
    """Raise if the longest prompt does not fit the model."""
    run.model_len(max(_tokens(run)) + 1, what=f"a prompt of {max(_tokens(run))}")


def measure(run: Run) -> None:
    """A row for each mode and length, then the peers."""
    _ = run.limits
    run.evidence.note("ttft_ms: wall time of one request with one output token, median of the repeats")
    run.evidence.note("device_ms, busy_ms: union of all kernel times of such a request, by the profiler; CUDA only")
    run.evidence.note(IDLE_NOTE.format(measured="ttft_ms"))
    tokens = _tokens(run)
    limits: dict[str, Any] = {
        "max_model_len": run.model_len(max(tokens) + 1, what="a prompt"),
        "max_num_batched_tokens": max(8192 if run.is_cuda else 512, *tokens),
    }
    modes = run.config.modes or ("full_and_piecewise", "none")
    for mode in modes:
        with run.variant(mode), run.engine(mode, mode=mode, max_num_reqs=8, **limits) as llm:
            for num_tokens in tokens:
                with run.variant(f"{mode} tokens {num_tokens}"):
                    run.evidence.add(_row(run, llm, mode, num_tokens))

    def measure_peer(name: str, seconds: GenerateSeconds) -> None:
        for num_tokens in tokens:
            with run.variant(f"{name} tokens {num_tokens}"):
                ttfts = summary("ttft_ms", measure_ttfts(run, seconds, num_tokens=num_tokens))
                row = {"mode": name, "tokens": num_tokens, **ttfts}
                run.evidence.add(row | _floors(run, num_tokens, float(row["ttft_ms"])))  # type: ignore[arg-type]

    measure_peers(run, measure_peer, max_num_reqs=8, warm_up_tokens=(max(tokens), 1), **limits)
    profile_rows(run, modes, {"max_num_reqs": 8, **limits}, lambda llm, row: _profiled(run, llm, row))


def _tokens(run: Run) -> tuple[int, ...]:
    return run.choose(run.config.tokens, cuda=(16, 200, 512, 2048, 4096), cpu=(16, 64))


def _row(run: Run, llm: LLM, mode: str, num_tokens: int) -> dict[str, Any]:
    seconds, before = EngineSeconds(llm), llm.stats()
    row: dict[str, Any] = {"mode": mode, "tokens": num_tokens, "text": llm.tokenizer is not None}
    row |= summary("ttft_ms", measure_ttfts(run, seconds, num_tokens=num_tokens))
    steps = steps_between(before, llm.stats())
    row |= {"runtime_mode": max(steps, key=steps.__getitem__), "steps_by_runtime_mode": steps}
    row |= {"device_ms": None, "kernels": None, "idle_percent": None}
    return row | _floors(run, num_tokens, row["ttft_ms"])


def _profiled(run: Run, llm: LLM, row: dict[str, Any]) -> dict[str, Any]:
    seconds = EngineSeconds(llm)
    found = profiled_step(run, lambda: seconds(run.prompts(1, row["tokens"]), 1))
    busy_ms = found["busy_ms"]
    return {**found, "device_ms": busy_ms, "idle_percent": idle_percent(busy_ms, row["ttft_ms"])}


def _floors(run: Run, num_tokens: int, measured_ms: float) -> dict[str, float]:
    return floors(
        run.target.costs,
        run.limits,
        num_tokens=num_tokens,
        num_sampled=1,
        kv_tokens=num_tokens,
        context_pairs=num_tokens * (num_tokens + 1) / 2,
        measured_ms=measured_ms,
    )
