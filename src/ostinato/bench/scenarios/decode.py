"""``decode``: time per output token of the whole engine by mode and batch, and where the time goes.

TPOT holds scheduling, sampling and delivery. Beside it: the device time of the step's graph alone, the host's time,
and the floor that bytes and arithmetic set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.bench.end_to_end import (
    NUM_LONG,
    NUM_SHORT,
    EngineSeconds,
    GenerateSeconds,
    decode_host_us,
    measure_peers,
    measure_tpots,
    steps_between,
)
from ostinato.bench.engine_probe import decode_key, facade_of, replay_ms
from ostinato.bench.floor import floors
from ostinato.bench.profiling import IDLE_NOTE, idle_percent, profile_rows, profiled_step
from ostinato.bench.run import Run
from ostinato.bench.statistics import summary
from ostinato.runtime import RuntimeMode

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["check", "measure"]

_PROFILED_STEPS = 16


def check(run: Run) -> None:
    """Raise if prompt and output do not fit the model, or a batch does not fit the engine that was asked for."""
    run.model_len(_prompt_tokens(run) + NUM_LONG, what=f"a prompt of {_prompt_tokens(run)} with {NUM_LONG} outputs")
    run.check_limit("batch", _batches(run), "max_num_reqs")


def measure(run: Run) -> None:
    """A row for each mode and batch, then the peers."""
    _ = run.limits
    run.evidence.note(
        f"tpot_ms: (time of {NUM_LONG} output tokens - time of {NUM_SHORT}) / {NUM_LONG - NUM_SHORT} of the whole "
        "engine, greedy, random prompts, median of the repeats; spread is lowest and highest"
    )
    run.evidence.note(
        "device_ms: the step's full graph replayed alone at the mean context (clock 'replay'), or else the "
        "union of all kernel times of a step (clock 'profiler'); on a CPU the graph's wall time, which is host time"
    )
    run.evidence.note(
        "busy_ms, and kernels beside it: the union of the times of all that the device did in a step, gaps inside of a "
        "graph left out, and how much that was, by the profiler; in rows without busy_ms kernels are the graph's nodes"
    )
    run.evidence.note(
        "host_us: the engine's own work on the host a decode step, less its waiting for the device; no prompts in it"
    )
    run.evidence.note(
        "stream_tpot_ms, stream_host_us: the same of the largest batch as streams, each step's updates received with "
        "their text; all other columns are of whole answers, which are made text once, at their end"
    )
    run.evidence.note(IDLE_NOTE.format(measured="tpot_ms"))
    batches, prompt_tokens = _batches(run), _prompt_tokens(run)
    limits: dict[str, Any] = {
        "max_model_len": run.model_len(prompt_tokens + NUM_LONG, what="a request"),
        "max_num_reqs": max(batches),
    }
    modes = run.config.modes or ("full_and_piecewise", "none")
    for mode in modes:
        with run.variant(mode), run.engine(mode, mode=mode, **limits) as llm:
            for batch in batches:
                with run.variant(f"{mode} batch {batch}"):
                    run.evidence.add(_row(run, llm, mode, batch, prompt_tokens))

    def measure_peer(name: str, seconds: GenerateSeconds) -> None:
        for batch in batches:
            with run.variant(f"{name} batch {batch}"):
                tpots = measure_tpots(run, seconds, batch=batch, prompt_tokens=prompt_tokens)
                row = {"mode": name, "batch": batch, **summary("tpot_ms", tpots)}
                run.evidence.add(row | _floors(run, batch, prompt_tokens, float(row["tpot_ms"])))  # type: ignore[arg-type]

    measure_peers(
        run,
        measure_peer,
        **limits,
        max_num_batched_tokens=run.config.engine.max_num_batched_tokens or 8192,
        warm_up_tokens=(prompt_tokens, NUM_LONG),
    )
    _compare(run)
    profile_rows(run, modes, limits, lambda llm, row: _profiled(run, llm, row, prompt_tokens))


def _batches(run: Run) -> tuple[int, ...]:
    return run.choose(run.config.batches, cuda=(1, 8, 29, 64, 128, 256), cpu=(1, 4))


def _prompt_tokens(run: Run) -> int:
    return run.config.prompt_tokens or 128


def _row(run: Run, llm: LLM, mode: str, batch: int, prompt_tokens: int) -> dict[str, Any]:
    seconds, before = EngineSeconds(llm), llm.stats()
    tpots = measure_tpots(run, seconds, batch=batch, prompt_tokens=prompt_tokens)
    after = llm.stats()
    steps = steps_between(before, after)
    row: dict[str, Any] = {"mode": mode, "batch": batch, "text": llm.tokenizer is not None}
    row |= summary("tpot_ms", tpots)
    row |= {"runtime_mode": max(steps, key=steps.__getitem__), "steps_by_runtime_mode": steps}
    row |= _device(run, llm, batch, prompt_tokens)
    row["idle_percent"] = idle_percent(row["device_ms"], row["tpot_ms"])
    if run.is_cuda:  # a CPU computes within it
        row |= summary("host_us", decode_host_us(seconds.busy_seconds))
    else:
        row["host_us"] = None
    if batch == max(_batches(run)):
        row |= _streamed(run, llm, batch, prompt_tokens)
    return row | _floors(run, batch, prompt_tokens, row["tpot_ms"])


def _streamed(run: Run, llm: LLM, batch: int, prompt_tokens: int) -> dict[str, Any]:
    """The same, each step's updates received one by one with their text."""
    seconds = EngineSeconds(llm, is_streamed=True)
    found: dict[str, Any] = summary(
        "stream_tpot_ms", measure_tpots(run, seconds, batch=batch, prompt_tokens=prompt_tokens)
    )
    if run.is_cuda:
        found |= summary("stream_host_us", decode_host_us(seconds.busy_seconds))
    return found


def _device(run: Run, llm: LLM, batch: int, prompt_tokens: int) -> dict[str, Any]:
    """Device time of a step at the mean context of those that TPOT counts, its kernels, and the clock that told."""
    found: dict[str, Any] = {"device_ms": None, "device_clock": None, "kernels": None, "busy_ms": None}
    key = decode_key(llm, num_reqs=batch, context_tokens=prompt_tokens + NUM_LONG)
    plan = None if key is None else facade_of(llm).plans[key]
    if plan is not None:
        found |= {"segments": plan.num_segments, "nodes": plan.num_nodes, "kernels": plan.num_nodes}
    if key is not None and key.runtime_mode is RuntimeMode.FULL:
        context = prompt_tokens + (NUM_SHORT + NUM_LONG) // 2
        times = replay_ms(llm, key, num_live=batch, context_tokens=context, repeats=max(10, run.repeats))
        found |= {**summary("device_ms", times), "device_clock": "replay" if run.is_cuda else "wall"}
    return found


def _profiled(run: Run, llm: LLM, row: dict[str, Any], prompt_tokens: int) -> dict[str, Any]:
    """Busy time and kernels of a decode step: what a longer answer has more than a shorter one."""
    seconds, batch = EngineSeconds(llm), row["batch"]
    found = profiled_step(
        run,
        lambda: seconds(run.prompts(batch, prompt_tokens), NUM_SHORT),
        lambda: seconds(run.prompts(batch, prompt_tokens), NUM_SHORT + _PROFILED_STEPS),
        num_steps=_PROFILED_STEPS,
    )
    if row["device_ms"] is None:
        found |= {"device_ms": found["busy_ms"], "device_clock": "profiler"}
        found["idle_percent"] = idle_percent(found["busy_ms"], row["tpot_ms"])
    return found


def _floors(run: Run, batch: int, prompt_tokens: int, measured_ms: float) -> dict[str, float]:
    """Of the mean step that TPOT measures: each request's context is the prompt and half of the counted outputs."""
    context = prompt_tokens + (NUM_SHORT + NUM_LONG) / 2
    return floors(
        run.target.costs,
        run.limits,
        num_tokens=batch,
        num_sampled=batch,
        kv_tokens=batch * context,
        context_pairs=batch * context,
        measured_ms=measured_ms,
    )


def _compare(run: Run) -> None:
    """The column ``speedup_over_eager`` where eager was measured."""
    eager = {row["batch"]: row["tpot_ms"] for row in run.evidence.rows if row["mode"] == "none"}
    for row in run.evidence.rows:
        if row["batch"] in eager:
            row["speedup_over_eager"] = round(eager[row["batch"]] / row["tpot_ms"], 2)
    run.evidence.save()
