"""``checks``: what a step pays before its graph is launched: the decision, and the guards at each level.

Host work alone, many calls to a measurement. The model's graphs first, one of each kind; then a callable of twenty
inputs that is said to read the model's weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ostinato.bench.engine_probe import check_guards, facade_of, model_of
from ostinato.bench.run import Run
from ostinato.bench.statistics import summary
from ostinato.runtime import GraphConfig, Graphed, GraphKey, LiveBatch

__all__ = ["check", "measure"]

LEVELS: Final = ("always", "sampled", "off")
_CALLS: Final = 200
_NUM_INPUTS, _ROWS, _COLUMNS = 20, 8, 64


def check(run: Run) -> None:
    """Raise if a bucket does not fit the model."""
    run.model_len(_ROWS, what="a bucket")


def measure(run: Run) -> None:
    """Rows level by level."""
    run.evidence.note(f"host time of one call, of {_CALLS} in a row; decide_us: of a batch that was decided before")
    for level in LEVELS:
        with run.variant(level), run.engine(level, guards=level, mode="full_and_piecewise", **_limits(run)) as llm:
            graphed = facade_of(llm)
            for key in _one_of_each(graphed):
                run.evidence.add(_row(run, graphed, key, level, callable_name=_kind(key)))
            model = model_of(llm)
            example = tuple(torch.zeros(_ROWS, _COLUMNS, device=run.target.device) for _ in range(_NUM_INPUTS))
            config = GraphConfig(mode="full", sizes=(_ROWS,), guards=level)
            with torch.inference_mode(), Graphed(_total, example=example, config=config, state=model) as many:
                many.warm_up()
                many.capture()
                name = f"{_NUM_INPUTS} inputs, {sum(1 for _ in model.parameters())} weights"
                run.evidence.add(_row(run, many, many.keys[0], level, callable_name=name))


def _total(*rows: Tensor) -> Tensor:
    return torch.stack(rows).sum(0)


def _limits(run: Run) -> dict[str, Any]:
    most_reqs = min(_ROWS, run.config.engine.max_num_reqs or _ROWS)
    return {
        "max_model_len": run.model_len(_ROWS, what="a bucket"),
        "max_num_batched_tokens": _ROWS,
        "max_num_reqs": most_reqs,
        "token_sizes": (_ROWS,),
        "decode_sizes": (most_reqs,),
    }


def _one_of_each(graphed: Graphed) -> list[GraphKey]:
    return list({_kind(key): key for key in graphed.keys}.values())


def _kind(key: GraphKey) -> str:
    return f"model, {key.runtime_mode}{' decode' if key.uniform_query_len is not None else ''}"


def _row(run: Run, graphed: Graphed, key: GraphKey, level: str, *, callable_name: str) -> dict[str, Any]:
    query_len = key.uniform_query_len
    reqs = key.num_reqs if query_len is not None else None
    live = LiveBatch(num_tokens=key.num_tokens, num_reqs=reqs, uniform_query_len=query_len, context_tokens=key.kv_tier)
    guards, num_watched = check_guards(graphed, key)
    decide = _us(lambda: graphed.decide(live), run.repeats)
    checks = _us(guards, run.repeats)
    return {
        "callable": callable_name,
        "guards": level,
        "watched": num_watched,
        **summary("decide_us", decide),
        **summary("guards_us", checks),
        **summary("both_us", [a + b for a, b in zip(decide, checks, strict=True)]),
    }


def _us(run: Callable[[], Any], repeats: int) -> list[float]:
    times = []
    for index in range(repeats + 1):
        began = time.perf_counter()
        for _ in range(_CALLS):
            run()
        if index:
            times.append((time.perf_counter() - began) * 1e6 / _CALLS)
    return times
