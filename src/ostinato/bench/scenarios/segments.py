"""``segments``: what a piecewise replay costs the host, by segment, by breaks and by checks.

First the model's own plans, then made-up chains: so many segments of one kernel, with a break between any two that
does nothing or launches one kernel. ``on`` is with all checks that a step does by default, ``sampled`` at that
level, ``off`` without any, ``bare`` the graphs' launches alone.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ostinato.bench.clock import host_times_us, synchronize
from ostinato.bench.engine_probe import facade_of, made_up, replay_host_us
from ostinato.bench.peers.registry import missing
from ostinato.bench.run import Run
from ostinato.bench.statistics import summary
from ostinato.runtime import GraphConfig, Graphed, GraphKey, graph_break

__all__ = ["check", "measure"]

_ROWS, _COLUMNS = 8, 64
HAS_LEVELS: Final = "guards" in {field.name for field in dataclasses.fields(GraphConfig)}
"""Whether this runtime lets a user choose how much a replay checks."""


def check(run: Run) -> None:
    """Raise if a bucket does not fit the engine that was asked for."""
    run.model_len(max(_tokens(run)), what="the largest bucket")
    run.check_limit("tokens", _tokens(run), "max_num_batched_tokens")


def measure(run: Run) -> None:
    """The model's plans, the chains, then the peer's chains."""
    run.evidence.note("host time of one replay, the device waited for between two; on a CPU the work itself is in it")
    if not HAS_LEVELS:
        run.evidence.note("sampled_us is empty: checks have no levels in this version")
    tokens = _tokens(run)
    limits: dict[str, Any] = {
        "max_model_len": run.model_len(max(tokens), what="a bucket"),
        "max_num_batched_tokens": max(tokens),
        "max_num_reqs": min(8, max(tokens)),
        "token_sizes": tokens,
    }
    with run.variant("model"):
        _measure_model(run, limits)
    chains = run.choose(run.config.segments, cuda=(1, 9, 33, 65, 129), cpu=(1, 9, 33))
    for has_kernel in (False, True):
        for num_segments in chains:
            with run.variant(f"chain of {num_segments}"):
                run.evidence.add(_chain_row(run, num_segments, has_kernel=has_kernel))
    for name in run.config.peers or ():
        _measure_peer(run, name, chains)


def _measure_model(run: Run, limits: dict[str, Any]) -> None:
    """A row for each key, with the checks of a second engine at level ``sampled`` beside."""
    rows: dict[GraphKey, dict[str, Any]] = {}
    with run.engine("model", mode="piecewise", **limits) as llm:
        graphed = facade_of(llm)
        for key, plan in graphed.plans.items():
            with made_up(graphed, key):
                times = replay_host_us(graphed, key, repeats=run.repeats)
            rows[key] = _row("model", times, plan.num_segments, len(plan.breaks), tokens=key.num_tokens)
    if HAS_LEVELS:
        with run.engine("model sampled", mode="piecewise", guards="sampled", **limits) as llm:
            graphed = facade_of(llm)
            for key in graphed.plans:
                with made_up(graphed, key):
                    times = replay_host_us(graphed, key, repeats=run.repeats)
                rows[key] |= summary("sampled_us", times["on"])
                rows[key]["sampled_us_per_segment"] = _per_segment(times["on"], rows[key]["segments"])
    for row in rows.values():
        run.evidence.add(row)


def _per_segment(times: list[float], num_segments: int) -> float:
    return round(statistics.median(times) / num_segments, 3)


def _tokens(run: Run) -> tuple[int, ...]:
    return tuple(sorted(set(run.choose(run.config.tokens, cuda=(8, 64), cpu=(8,)))))


def _chain_row(run: Run, num_segments: int, *, has_kernel: bool) -> dict[str, Any]:
    times, calls, num_breaks, found = _replay_chain(run, num_segments, has_kernel=has_kernel)
    row = _row(_label(has_kernel), times, found, num_breaks, tokens=_ROWS)
    if HAS_LEVELS:
        sampled, *_ = _replay_chain(run, num_segments, has_kernel=has_kernel, guards="sampled")
        row |= summary("sampled_us", sampled["on"])
        row["sampled_us_per_segment"] = _per_segment(sampled["on"], num_segments)
    if row["segments"] != num_segments:
        raise RuntimeError(f"the chain of {num_segments} was captured as {row['segments']} segments")
    return row | summary("call_us", calls)


def _replay_chain(
    run: Run, num_segments: int, *, has_kernel: bool, **level: Any
) -> tuple[dict[str, list[float]], list[float], int, int]:
    """Times of its replays and of whole calls, its breaks and segments; ``level`` is a setting of guards or none."""
    device = run.target.device
    example = torch.zeros(_ROWS, _COLUMNS, device=device)
    config = GraphConfig(mode="piecewise", sizes=(_ROWS,), outputs="view", **level)
    with torch.inference_mode(), Graphed(chain(num_segments, has_kernel), example=(example,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        ((key, plan),) = graphed.plans.items()
        graphed(example)
        times = replay_host_us(graphed, key, repeats=run.repeats)
        calls = host_times_us(lambda: graphed(example), device, run.repeats)
        return times, calls, len(plan.breaks), plan.num_segments


def chain(num_segments: int, has_kernel: bool) -> Callable[[Tensor], Tensor]:
    """A callable of ``num_segments`` one-kernel segments."""

    @graph_break
    def between(hidden: Tensor) -> None:
        if has_kernel:
            hidden.mul_(1.0)

    def run(hidden: Tensor) -> Tensor:
        for index in range(num_segments):
            hidden = hidden + 1.0
            if index < num_segments - 1:
                between(hidden)
        return hidden

    return run


def _row(
    callable_name: str, times: dict[str, list[float]], num_segments: int, num_breaks: int, *, tokens: int
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "callable": callable_name,
        "tokens": tokens,
        "segments": num_segments,
        "breaks": num_breaks,
        **summary("on_us", times["on"]),
        "sampled_us": None,
        **summary("off_us", times["off"]),
        **summary("bare_us", times["bare"]),
    }
    for name in ("on", "off", "bare"):
        row[f"{name}_us_per_segment"] = _per_segment(times[name], num_segments)
    return row


def _measure_peer(run: Run, name: str, chains: tuple[int, ...]) -> None:
    why = missing(name) or (None if run.is_cuda else "it needs a CUDA device")
    if why is not None:
        run.evidence.skip(name, why)
        return
    from ostinato.bench.peers.breakable_graphs import record_chain

    device = run.target.device
    for has_kernel in (False, True):
        for num_segments in chains:
            with run.variant(f"{name} chain of {num_segments}"):
                replay = record_chain(num_segments, has_kernel=has_kernel, device=device)
                times = host_times_us(replay, device, run.repeats)
                label = f"{name}: {_label(has_kernel)}"
                row = {"callable": label, "tokens": _ROWS, "segments": num_segments, "breaks": num_segments - 1}
                per_segment = {"off_us_per_segment": _per_segment(times, num_segments)}
                run.evidence.add(row | summary("off_us", times) | per_segment)
    synchronize(device)


def _label(has_kernel: bool) -> str:
    return "chain, one kernel a break" if has_kernel else "chain, empty breaks"
