"""``dispatch``: how far the way that measured costs choose is off the best one, for every size of a step.

The engine measures at start, as a user's would, and decides for every size. Then all its buckets are timed anew,
several times over, near ones side by side and eager between buckets too, and the decisions are judged by those times
alone: a loss is how much longer the chosen way takes than the fastest of all that were weighed. Beside it, what the
usual order (full before piecewise before eager, smallest bucket) would lose.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ostinato.bench.engine_probe import facade_of, measure_buckets
from ostinato.bench.run import Run
from ostinato.errors import ConfigError
from ostinato.runtime import BatchKind, CostSample, CostTable, Decision, GraphKey, LiveBatch

__all__ = ["check", "least", "losses", "measure"]

_BAR_PERCENT: Final = 3.0
_NUM_JUDGING: Final = 3
_FEWEST_TOKENS: Final = 2


def check(run: Run) -> None:
    """Raise if the largest step is no choice at all, or does not fit the engine that was asked for."""
    most = max(_tokens(run))
    if most < _FEWEST_TOKENS:
        fix = f"measure steps of up to {_FEWEST_TOKENS} tokens or more"
        raise ConfigError(f"tokens is {most}: there is no size to choose a bucket for", fix=fix, field="tokens")
    run.check_limit("tokens", _tokens(run), "max_num_batched_tokens")
    run.model_len(most, what=f"a prompt of {most}")


def measure(run: Run) -> None:
    """A row for decode, and one for prompts."""
    run.evidence.note(
        "losses in percent of the fastest way that was weighed, by times measured apart from the decision's: "
        f"the least of {_NUM_JUDGING} measurements of each bucket, in each of which contenders were timed side by side"
    )
    run.evidence.note(f"over_percent: sizes that lose more than {_BAR_PERCENT:g} %")
    most = max(_tokens(run))
    limits = {"max_num_batched_tokens": most, "max_model_len": run.model_len(most, what="a prompt")}
    with (
        run.variant("measured"),
        run.engine("measured", dispatch="measured", mode="full_and_piecewise", **limits) as llm,
    ):
        graphed = facade_of(llm)
        most_reqs = llm.config.max_num_reqs or 1
        kinds = {
            "decode": [LiveBatch(num_tokens=n, num_reqs=n, uniform_query_len=1) for n in range(1, most_reqs + 1)],
            "prefill": [LiveBatch(num_tokens=n, num_reqs=1) for n in range(1, most + 1)],
        }
        decided = {kind: [graphed.decide(live) for live in lives] for kind, lives in kinds.items()}
        found = [measure_buckets(llm, budget_seconds=10.0 if run.is_cuda else 0.3) for _ in range(_NUM_JUDGING)]
        times = least(found)
        run.evidence.extra["costs"] = {"decided": graphed.costs and graphed.costs.to_dict(), "judged": times.to_dict()}
        for kind, decisions in decided.items():
            run.evidence.add({"kind": kind, "sizes": len(decisions), **_row(losses(decisions, times))})
            modes = [decision.runtime_mode.value for decision in decisions]
            run.evidence.rows[-1] |= {f"num_{mode}": modes.count(mode) for mode in dict.fromkeys(modes)}


def _tokens(run: Run) -> tuple[int, ...]:
    return run.choose(run.config.tokens, cuda=(4096,), cpu=(64,))


def least(tables: Sequence[CostTable]) -> CostTable:
    """What each step took where it was disturbed least: a host that is shared slows down for seconds at a time, and
    would make whoever had its turns then look slow."""
    found: dict[tuple[BatchKind, str, int], list[CostSample]] = {}
    for sample in (sample for table in tables for sample in table.samples):
        found.setdefault((sample.kind, sample.way, sample.size), []).append(sample)
    return CostTable(tuple(min(same, key=lambda sample: sample.ms) for same in found.values()))


def losses(decisions: Iterable[Decision], times: CostTable) -> dict[int, tuple[float, float]]:
    """Percent lost at each size, by the chosen way and by the first in the usual order."""
    found: dict[int, tuple[float, float]] = {}
    for decision in decisions:
        weighed = [decision.key, *(other.key for other in decision.alternatives if other.cost_ms is not None)]
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


def _row(found: Mapping[int, tuple[float, float]]) -> dict[str, Any]:
    chosen = {size: loss for size, (loss, _) in found.items()}
    ordered = [loss for _, loss in found.values()]
    if not chosen:
        return {"weighed": 0}
    worst = max(chosen, key=lambda size: chosen[size])
    return {
        "weighed": len(chosen),
        "worst_percent": round(chosen[worst], 2),
        "worst_at": worst,
        "mean_percent": round(statistics.fmean(chosen.values()), 3),
        "over_percent": round(100 * sum(loss > _BAR_PERCENT for loss in chosen.values()) / len(chosen), 2),
        "order_worst_percent": round(max(ordered), 2),
        "order_mean_percent": round(statistics.fmean(ordered), 3),
    }
