"""``dispatch``: how far the way that measured costs choose is off the best one, for every size of a step.

The engine measures at start, as a user's would, and decides for every size. Then all its buckets are timed anew,
several times over, near ones side by side and eager between buckets too, and the decisions are judged by those times
alone: a loss is how much longer the chosen way takes than the fastest of all that were weighed. Beside it, what the
usual order (full before piecewise before eager, smallest bucket) would lose.

The default ladder may end below the largest size, and nothing is chosen above it. So the engine captures a ladder that
goes on as the default one ends; sizes are decided by the default ladder's graphs alone, as users run, and by all.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ostinato.bench.engine_probe import facade_of, measure_buckets
from ostinato.bench.run import Run
from ostinato.engine.execution.sizes import named_sizes, token_sizes_for
from ostinato.errors import ConfigError
from ostinato.runtime import (
    BatchKind,
    CostSample,
    CostTable,
    Decision,
    GraphKey,
    KeyTable,
    LiveBatch,
    RuntimeMode,
    choose,
)

__all__ = ["check", "extended", "judged", "kinds_of_steps", "losses", "measure", "merged"]

_BAR_PERCENT: Final = 3.0
_NUM_JUDGING: Final = 3
_JUDGING_SECONDS: Final = {"cuda": 8.0, "cpu": 0.3}
"""Of each measurement that judges, for all buckets in turns; contenders side by side take at most as long again. With
the engine's own measurement at its start all of it is two minutes on an H200."""
_FEWEST_TOKENS: Final = 2
_BEHIND_EACH_OTHER: Final = (
    "steps were timed as they are served, one right behind the other, by the device's clock: the host's work or the "
    "device's, whichever is more"
)
_WAITED_FOR: Final = (
    "steps were timed one by one, each waited for, by the clock on the wall: the host's work and the device's together"
)


def check(run: Run) -> None:
    """Raise if the largest step is no choice at all, or does not fit the engine that was asked for."""
    most = max(_tokens(run))
    if most < _FEWEST_TOKENS:
        fix = f"measure steps of up to {_FEWEST_TOKENS} tokens or more"
        raise ConfigError(f"tokens is {most}: there is no size to choose a bucket for", fix=fix, field="tokens")
    run.check_limit("tokens", _tokens(run), "max_num_batched_tokens")
    run.model_len(most, what=f"a prompt of {most}")


def measure(run: Run) -> None:
    """For each mode a row for decode; one for prompts by each ladder, and so for more requests than full graphs of
    mixed steps have slots."""
    note = run.evidence.note
    note(
        "losses in percent of the fastest way that was weighed, by times measured apart from the decision's: "
        f"the least of {_NUM_JUDGING} measurements of each bucket, in each of which contenders were timed side by side"
    )
    note(
        "typical_...: the same by the median of those measurements. What waits for the host scatters more than what "
        "waits for the device, so its least time flatters it"
    )
    note(f"over_percent: sizes that lose more than {_BAR_PERCENT:g} %")
    note("weighed: sizes with two ways or more that were measured; one_way: sizes with a single way to run them")
    most = max(_tokens(run))
    device_type = run.target.device.type
    given = named_sizes(run.config.engine.token_sizes, "mixed", limit=most)
    default = given or token_sizes_for(device_type, most, run.target.layer_weights)
    sizes = extended(default, most)
    added = [size for size in sizes if size not in default]
    if added:
        note(
            f"the default ladder of mixed steps ends at {max(default)}; the engine captured {added} too. Rows of the "
            "default ladder are decisions by its graphs alone, rows of the extended one by all"
        )
    limits = {"max_num_batched_tokens": most, "max_model_len": run.model_len(most, what="a prompt")}
    for mode in run.config.modes or ("auto",):
        with run.variant(mode), run.engine(mode, dispatch="measured", mode=mode, token_sizes=sizes, **limits) as llm:
            graphed = facade_of(llm)
            note(_BEHIND_EACH_OTHER if llm.config.overlap and device_type == "cuda" else _WAITED_FOR)
            ladders = {"default": tuple(default)} | ({"extended": sizes} if added else {})
            lives = kinds_of_steps(graphed.plans, most_tokens=most, most_reqs=llm.config.max_num_reqs or 1)
            decided = {
                (kind, ladder): _decisions(graphed.plans, same, ladders[ladder], graphed.costs)
                for kind, same in lives.items()
                for ladder in (ladders if kind != "decode" else ("default",))
            }
            seconds = _JUDGING_SECONDS[device_type]
            found = [measure_buckets(llm, budget_seconds=seconds) for _ in range(_NUM_JUDGING)]
            times, typical = merged(found, min), merged(found, statistics.median)
            run.evidence.extra.setdefault("costs", {})[mode] = {
                "decided": graphed.costs and graphed.costs.to_dict(),
                "judged": times.to_dict(),
                "measurements": [table.to_dict() for table in found],
            }
            for (kind, ladder), decisions in decided.items():
                row = {"mode": mode, "kind": kind, "ladder": ladder, **judged(decisions, times)}
                usual = judged(decisions, typical)
                names = ("worst_percent", "worst_at", "mean_percent", "over_percent")
                run.evidence.add(row | {f"typical_{name}": usual[name] for name in names if name in usual})


def _tokens(run: Run) -> tuple[int, ...]:
    return run.choose(run.config.tokens, cuda=(4096,), cpu=(64,))


def extended(ladder: Sequence[int], most: int) -> tuple[int, ...]:
    """``ladder``, and on up to ``most`` in as many sizes an octave as its last one has."""
    sizes = sorted(size for size in ladder if size <= most) or [most]
    while sizes[-1] < most:
        end = sizes[-1]
        sizes += [min(2 * size, most) for size in sizes if size > end / 2]
    return tuple(sorted(set(sizes)))


def kinds_of_steps(keys: Iterable[GraphKey], *, most_tokens: int, most_reqs: int) -> dict[str, list[LiveBatch]]:
    """Every size of each kind of step. Mixed ones of many requests have their own, where full graphs of ``keys`` hold
    few: only the ways that are left are weighed for them."""
    found = {
        "decode": [LiveBatch(num_tokens=n, num_reqs=n, uniform_query_len=1) for n in range(1, most_reqs + 1)],
        "prefill": [LiveBatch(num_tokens=n, num_reqs=1) for n in range(1, most_tokens + 1)],
    }
    slots = [key.num_reqs or 0 for key in keys if _is_full_mixed(key)]
    many = max(slots, default=0) + 1
    if slots and many <= min(most_reqs, most_tokens):
        found[f"mixed, {many} requests"] = [
            LiveBatch(num_tokens=n, num_reqs=many) for n in range(many, most_tokens + 1)
        ]
    return found


def _is_full_mixed(key: GraphKey) -> bool:
    return key.runtime_mode is RuntimeMode.FULL and key.uniform_query_len is None


def _decisions(
    keys: Iterable[GraphKey], lives: Iterable[LiveBatch], ladder: Sequence[int], costs: CostTable | None
) -> list[Decision]:
    """What is done by ``keys`` if the token buckets are those of ``ladder`` alone."""
    table = KeyTable([key for key in keys if key.uniform_query_len is not None or key.num_tokens in ladder])
    return [choose(live, table, costs=costs) for live in lives]


def merged(tables: Sequence[CostTable], statistic: Callable[[list[float]], float]) -> CostTable:
    """One table of several measurements; each sample is there whose ``ms`` is ``statistic`` of those of its cost.

    The least is what a step took where it was disturbed least: a host that is shared slows down for seconds at a time,
    and would make whoever had its turns then look slow.
    """
    found: dict[tuple[BatchKind, str, int], list[CostSample]] = {}
    for sample in (sample for table in tables for sample in table.samples):
        found.setdefault(sample.cost, []).append(sample)
    samples = []
    for same in found.values():
        ms = statistic([sample.ms for sample in same])
        nearest = min(same, key=lambda sample: abs(sample.ms - ms))
        samples.append(dataclasses.replace(nearest, ms=ms))
    return CostTable(tuple(samples))


def losses(decisions: Iterable[Decision], times: CostTable) -> dict[int, tuple[float, float]]:
    """Percent lost at each size, by the chosen way and by the first in the usual order."""
    found: dict[int, tuple[float, float]] = {}
    for decision in decisions:
        weighed = _weighed(decision)
        costs = [times.cost_ms(decision.live, key) for key in weighed]
        first = times.cost_ms(decision.live, _first(weighed))
        known = [cost for cost in costs if cost is not None]
        if costs[0] is None or first is None or len(known) < 2:
            continue
        best = min(known)
        found[decision.live.num_tokens] = (100 * (costs[0] / best - 1), 100 * (first / best - 1))
    return found


def _first(keys: Iterable[GraphKey | None]) -> GraphKey | None:
    """What the usual order takes: the best rank, then the smallest bucket; None is eager."""
    return min(
        (key for key in keys if key is not None),
        key=lambda key: (key.runtime_mode.value != "FULL", key.uniform_query_len is None, key.num_tokens),
        default=None,
    )


def judged(decisions: Sequence[Decision], times: CostTable) -> dict[str, Any]:
    """Of ``decisions``, one for each size: how many were a choice, what they lose by ``times``, what runs them."""
    found = losses(decisions, times)
    row: dict[str, Any] = {
        "sizes": len(decisions),
        "weighed": len(found),
        "one_way": sum(len(_weighed(decision)) == 1 for decision in decisions),
    }
    if found:
        chosen = {size: loss for size, (loss, _) in found.items()}
        ordered = [loss for _, loss in found.values()]
        worst = max(chosen, key=lambda size: chosen[size])
        row |= {
            "worst_percent": round(chosen[worst], 2),
            "worst_at": worst,
            "mean_percent": round(statistics.fmean(chosen.values()), 3),
            "over_percent": round(100 * sum(loss > _BAR_PERCENT for loss in chosen.values()) / len(chosen), 2),
            "order_worst_percent": round(max(ordered), 2),
            "order_mean_percent": round(statistics.fmean(ordered), 3),
        }
    modes = [decision.runtime_mode.value for decision in decisions]
    return row | {f"num_{mode}": modes.count(mode) for mode in dict.fromkeys(modes)}


def _weighed(decision: Decision) -> list[GraphKey | None]:
    """The way that was chosen, and those that it was weighed against."""
    return [decision.key, *(other.key for other in decision.alternatives if other.cost_ms is not None)]
