"""``executables``: what graphs save that share executables, and what a switch from one graph to another costs then.

Memory comes from fresh processes, one a setting: the driver keeps what earlier graphs leave behind, and later ones seem
to take nothing. Times come from one engine a setting, on the same two keys of each kind: a replay after one of the same
key, and after one of the other key, which with a shared executable is a switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any, Final

from ostinato.bench.clock import host_times_us, step_times_ms, synchronize
from ostinato.bench.engine_probe import facade_of, made_up
from ostinato.bench.run import Run
from ostinato.bench.scenarios.startup import check as check_prompt
from ostinato.bench.scenarios.startup import start_process
from ostinato.bench.statistics import summary
from ostinato.engine.attention import get_forward_context, install_forward_context
from ostinato.errors import ConfigError
from ostinato.runtime import Graphed, GraphKey, RuntimeMode

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["check", "measure"]

_MODE: Final = "full_and_piecewise"
Pair = tuple[GraphKey, GraphKey]


def check(run: Run) -> None:
    """Raise if attention plans each step, or the prompt of the fresh processes does not fit."""
    if run.config.engine.attention == "flashinfer":
        raise ConfigError(
            "executables replays graphs of two sizes in turns, and flashinfer plans one", fix="use triton"
        )
    check_prompt(run)


def measure(run: Run) -> None:
    """A row of memory for each setting, then for each kind of key a row of times for each setting."""
    run.evidence.note(
        "executable_bytes: device memory that left beside the allocator at the captures of a fresh process, kernels "
        "that were loaded for them included; 0 on a CPU"
    )
    run.evidence.note("replays are of empty contexts: two sizes read their inputs from one memory")
    run.evidence.note(
        "same: a replay after one of the same key; other: after one of the other key. host_us: until the call returns, "
        "the device idle; ms: from before the call until the device is done. switch: what other takes beyond own"
    )
    for setting in ("own", "shared"):
        with run.variant(f"memory, {setting}"):
            run.evidence.add(_memory_row(run, setting))
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    pairs: dict[str, Pair] = {}
    for setting in ("shared", "own"):  # the first finds out which keys share
        with run.variant(setting), run.engine(setting, mode=_MODE, executables=setting) as llm:
            pairs = pairs or _pairs(llm)
            rows[setting] = {kind: _times(run, llm, pair) for kind, pair in pairs.items()}
    for kind, pair in pairs.items():
        for setting in ("own", "shared"):
            if kind in rows.get(setting, {}):
                row = {"executables": setting, "kind": kind, "sizes": [key.num_tokens for key in pair]}
                run.evidence.add(row | rows[setting][kind] | _switch(rows, kind, setting))
    if not pairs:
        run.evidence.note("no two keys of a kind share an executable here")


def _memory_row(run: Run, setting: str) -> dict[str, Any]:
    _, child = start_process(run, mode=_MODE, executables=setting)
    run.evidence.config[f"memory, {setting}"] = {**child["config"], "graphs": child["graphs"]}
    found = child["graphs"]["executables"]
    return {
        "executables": setting,
        "kind": "all graphs",
        "graphs": child["graphs"]["count"],
        "segments": child["graphs"]["segments"],
        "num_executables": found["count"],
        "nodes": found["nodes"],
        "executable_bytes": found["bytes"],
        "capture_seconds": child["graphs"]["capture_seconds"],
    }


def _pairs(llm: LLM) -> dict[str, Pair]:
    """For each kind the largest two neighbours among the sizes between which a replay switches."""
    graphed = facade_of(llm)
    found: dict[str, Pair] = {}
    kinds: dict[str, list[GraphKey]] = {}
    for key in sorted(graphed.plans, key=lambda key: (key.kv_tier or 0, -key.num_tokens)):
        if key.runtime_mode is RuntimeMode.PIECEWISE or key.uniform_query_len == 1:
            kinds.setdefault(key.kind, []).append(key)
    for kind, keys in kinds.items():
        for pair in pairwise(keys):
            with _ready(llm, pair) as replays:
                before = graphed.backend.executables().num_switches
                for replay in (*replays, *replays):
                    replay()
                if graphed.backend.executables().num_switches > before:
                    found[kind] = pair
                    break
    return found


@contextmanager
def _ready(llm: LLM, pair: Pair) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """The replays of ``pair``, the larger first, on inputs that both can read: zeros, since their slots lie elsewhere.

    So a decode has empty contexts, and what attention takes is not in its times.
    """
    graphed = facade_of(llm)
    larger, smaller = pair

    def replay(key: GraphKey) -> Callable[[], Any]:
        plan, context = graphed.plans[key], get_forward_context()

        def run() -> None:
            install_forward_context(context)  # breaks look their step up there, and each key has its own
            plan.replay(key.num_tokens)

        return run

    with made_up(graphed, smaller):
        replay_smaller = replay(smaller)
    with made_up(graphed, larger):
        graphed.buffers.arena.zero_()
        yield replay(larger), replay_smaller


def _times(run: Run, llm: LLM, pair: Pair) -> dict[str, Any]:
    """Times of the larger key's replay after itself, and after the other's."""
    graphed = facade_of(llm)
    with _ready(llm, pair) as (larger, smaller):
        row: dict[str, Any] = {
            "nodes": graphed.plans[pair[0]].num_nodes,
            "segments": graphed.plans[pair[0]].num_segments,
        }
        row["switches"] = _switches(graphed, larger, smaller)
        for clock, unit in ((host_times_us, "host_us"), (step_times_ms, "ms")):
            row |= summary(f"same_{unit}", clock(larger, graphed.device, run.repeats))
            turns = cycle((larger, smaller))
            both = clock(lambda turns=turns: next(turns)(), graphed.device, 2 * run.repeats)  # type: ignore[misc]
            row |= summary(f"other_{unit}", both[::2])  # an even number of calls goes untimed before
    return row


def _switches(graphed: Graphed, larger: Callable[[], Any], smaller: Callable[[], Any]) -> int:
    """Updates in one replay of the larger key after the other's."""
    smaller()
    before = graphed.backend.executables().num_switches
    larger()
    synchronize(graphed.device)
    return graphed.backend.executables().num_switches - before


def _switch(rows: dict[str, dict[str, dict[str, Any]]], kind: str, setting: str) -> dict[str, Any]:
    """What the shared executable adds to a replay after another key's."""
    own = rows.get("own", {}).get(kind)
    if setting == "own" or own is None:
        return {}
    shared = rows["shared"][kind]
    return {f"switch_{unit}": round(shared[f"other_{unit}"] - own[f"other_{unit}"], 4) for unit in ("host_us", "ms")}
