"""``surface``: every way to make graphs x tokens x requests on this machine, and where a graph stops paying.

A step holds so many tokens of so many requests: as many prompts of equal length, whose first tokens end it. Where
each request brings one token the step is a decode, measured as time per output token. Beside the engine's step:
the plan replayed alone (``replay_ms``) and the same call without a graph (``eager_ms``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ostinato.bench.crossover import crossover, largest_paying
from ostinato.bench.end_to_end import EngineSeconds, measure_ttfts, steps_between
from ostinato.bench.engine_probe import facade_of, made_up_eager_ms, made_up_replay_ms, replay_ms
from ostinato.bench.run import Run
from ostinato.bench.statistics import summary, tpot_ms
from ostinato.runtime import RuntimeMode

if TYPE_CHECKING:
    from ostinato import LLM
    from ostinato.runtime import GraphKey

__all__ = ["check", "measure"]

_SETTINGS: Final[dict[str, dict[str, str]]] = {
    "eager": {"mode": "none", "partition": "breakable", "compile": "none"},
    "breakable": {"mode": "piecewise", "partition": "breakable", "compile": "none"},
    "fx": {"mode": "piecewise", "partition": "fx", "compile": "none"},
    "fx+inductor": {"mode": "piecewise", "partition": "fx", "compile": "inductor"},
    "inductor": {"mode": "piecewise", "partition": "inductor", "compile": "none"},
    "full": {"mode": "full", "partition": "breakable", "compile": "none"},
}
_RUNTIME_MODES: Final = {"eager": "EAGER", "full": "FULL"}  # of the variants' own rows; all others are PIECEWISE
_DECODE_SHORT, _DECODE_LONG = 4, 36


def check(run: Run) -> None:
    """Raise if a step does not fit the model or the engine that was asked for."""
    run.model_len(_longest(run), what="the longest prompt with its outputs")
    run.check_limit("requests", _requests(run), "max_num_reqs")
    run.check_limit("tokens", _tokens(run), "max_num_batched_tokens")


def measure(run: Run) -> None:
    """Rows variant by variant, then the crossovers."""
    run.evidence.note("step_ms: wall time of the engine's step; replay_ms and eager_ms: device events (wall on a CPU)")
    run.evidence.note(
        "replay_ms and eager_ms are of the batch that the graph was captured with: as few requests as fit"
    )
    for name in run.choose(run.config.variants, cuda=tuple(_SETTINGS), cpu=("eager", "breakable", "fx")):
        with run.variant(name), run.engine(name, **_SETTINGS[name], **_limits(run)) as llm:
            graphs = llm.stats()["graphs"]
            for num_reqs in _requests(run):
                for num_tokens in _tokens(run):
                    if num_tokens >= num_reqs:
                        with run.variant(f"{name} tokens {num_tokens} requests {num_reqs}"):
                            run.evidence.add({"variant": name, **_step(run, llm, num_tokens, num_reqs)})
            with run.variant(f"{name} plans"):
                _add_plans(run, llm, name, graphs)
        run.evidence.extra["crossovers"] = _crossovers(run)
        run.evidence.save()


def _tokens(run: Run) -> tuple[int, ...]:
    return tuple(
        sorted(set(run.choose(run.config.tokens, cuda=(1, 8, 64, 256, 512, 1024, 2048, 4096, 8192), cpu=(1, 16, 64))))
    )


def _requests(run: Run) -> tuple[int, ...]:
    return tuple(sorted(set(run.choose(run.config.requests, cuda=(1, 8, 64), cpu=(1, 4)))))


def _longest(run: Run) -> int:
    """Tokens of the longest request of all: a prompt and its output."""
    prompts = [t // r for t in _tokens(run) for r in _requests(run) if t >= r]
    return max([*prompts, 1]) + _DECODE_LONG


def _limits(run: Run) -> dict[str, Any]:
    tokens, requests = _tokens(run), _requests(run)
    most = max(*tokens, *requests)
    decodes = tuple(sorted({r for r in requests if r in tokens}))
    pages = 16 * max(requests)  # a request's last page may be nearly empty
    return {
        "max_model_len": run.model_len(_longest(run), what="a request"),
        "max_num_reqs": max(requests),
        "max_num_batched_tokens": most,
        "token_sizes": tokens,
        "decode_sizes": decodes or None,
        "kv_tokens": 2 * (most + pages) + _DECODE_LONG * max(requests),
    }


def _step(run: Run, llm: LLM, num_tokens: int, num_reqs: int) -> dict[str, Any]:
    seconds, before = EngineSeconds(llm), llm.stats()
    is_decode = num_tokens == num_reqs
    if is_decode:
        times = []
        for index in range(run.repeats + 1):
            short = seconds(run.prompts(num_reqs, 1), _DECODE_SHORT)
            long = seconds(run.prompts(num_reqs, 1), _DECODE_LONG)
            if index:
                times.append(tpot_ms(short, long, num_short=_DECODE_SHORT, num_long=_DECODE_LONG))
    else:
        times = measure_ttfts(run, seconds, num_tokens=num_tokens // num_reqs, num_reqs=num_reqs)
    steps = steps_between(before, llm.stats())
    row: dict[str, Any] = {
        "tokens": num_tokens // num_reqs * num_reqs,
        "requests": num_reqs,
        "kind": "decode" if is_decode else "prefill",
        "text": llm.tokenizer is not None,
        **summary("step_ms", times),
        "runtime_mode": max(steps, key=steps.__getitem__),
    }
    key = _key_of(row, list(facade_of(llm).plans))
    if key is not None and key.uniform_query_len == 1:
        times = replay_ms(llm, key, num_live=row["tokens"], context_tokens=_DECODE_LONG, repeats=run.repeats)
        row |= summary("replay_ms", times)
    return row


def _add_plans(run: Run, llm: LLM, name: str, graphs: dict[str, Any]) -> None:
    """Put what each plan costs into the rows that replay it; asked last, since it uses the buffers up."""
    plans = facade_of(llm).plans
    costs = {
        "capture_seconds": round(graphs["capture_seconds"], 3),
        "graphs": graphs["count"],
        "pool_bytes": graphs["pool_bytes"],
    }
    times: dict[GraphKey, dict[str, Any]] = {}
    for row in run.evidence.rows:
        if row["variant"] != name:
            continue
        row |= costs
        key = _key_of(row, list(plans))
        if key is None:
            continue
        row |= {"segments": plans[key].num_segments, "nodes": plans[key].num_nodes}
        if key.runtime_mode is RuntimeMode.FULL or row["kind"] == "decode" or row["requests"] > 1:
            continue  # captured with another batch, whose time would say nothing of this row
        if key not in times:
            eager = summary("eager_ms", made_up_eager_ms(llm, key, repeats=run.repeats))["eager_ms"]
            replay = summary("replay_ms", made_up_replay_ms(llm, key, repeats=run.repeats))
            times[key] = {**replay, "eager_ms": eager}
        row |= times[key]


def _key_of(row: dict[str, Any], keys: list[GraphKey]) -> GraphKey | None:
    """The smallest key of the row's runtime mode that holds its tokens, and for a decode preferably its own kind."""
    fitting = [k for k in keys if k.runtime_mode.value == row["runtime_mode"] and k.num_tokens >= row["tokens"]]
    if row["kind"] == "prefill":
        fitting = [k for k in fitting if not _is_decode(k)]
    return min(fitting, key=lambda k: (not _is_decode(k), k.num_tokens, k.kv_tier or 0), default=None)


def _is_decode(key: GraphKey) -> bool:
    return key.uniform_query_len is not None


def _crossovers(run: Run) -> list[dict[str, Any]]:
    """For each variant and number of requests: the largest size that pays, and the size from which none does."""
    times: dict[tuple[str, int], dict[int, float]] = {}
    for row in run.evidence.rows:
        if row["runtime_mode"] == _RUNTIME_MODES.get(row["variant"], "PIECEWISE"):  # else it ran as another variant
            times.setdefault((row["variant"], row["requests"]), {})[row["tokens"]] = row["step_ms"]
    found = []
    for (variant, requests), graph in times.items():
        eager = times.get(("eager", requests))
        if variant != "eager" and eager:
            pays, stops = largest_paying(graph, eager), crossover(graph, eager)
            found.append({"variant": variant, "requests": requests, "pays_up_to": pays, "stops_paying_at": stops})
    return found
