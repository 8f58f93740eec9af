"""Which measured costs decide between each other, and a table brought into line with ratios between them. No torch.

A choice looks at differences of a few percent between candidates, which two measurements apart of each other on a host
whose speed changes do not give. So contenders are measured side by side (`confirm`), and their costs moved until the
ratios in the table are the ratios that were seen. Candidates are those that `policy` weighs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Final

from ostinato.runtime.dispatch.costs import BatchKind, Cost, CostTable, way_of, way_order
from ostinato.runtime.dispatch.measure import StepsToTime, TimedStep
from ostinato.runtime.dispatch.policy import KEYS_A_GROUP, decision_for
from ostinato.runtime.keys import LiveBatch

__all__ = ["contests", "in_line", "with_eager_between"]

_CLOSE: Final = 0.12
"""Candidates within this share of the least are contenders. First measurements of equal steps differ by up to 10 % on a
host that slows down for seconds at a time; a contest that nobody would win costs a turn in each round."""
_WIDE: Final = 64
"""Tokens from one bucket to the next from which eager is timed within. Fewer change what a device does by little beside
what any step costs."""
_FIRST_WEIGHT: Final = 0.02
"""Of what a cost was at its least, beside a ratio to another one: it says how high all of them are, and no more."""
_MOST_SWEEPS: Final = 2000
_SETTLED: Final = 1e-9


def contests(todo: Sequence[TimedStep], table: CostTable) -> list[tuple[TimedStep, TimedStep]]:
    """Pairs of steps whose costs in ``table`` decide between each other at some size, each pair once.

    At each size where another bucket begins: all candidates whose cost is near the least, and the first in the usual
    order, from which only what is seen beside it may depart. Eager stands at the sizes of that class that were timed.
    Where full graphs hold few requests, the ways that are left for more decide between each other too, however much
    faster the full graph is.
    """
    found: dict[tuple[Cost, Cost], tuple[TimedStep, TimedStep]] = {}
    for steps in _by_kind(todo).values():
        smaller = 0
        for end in (step.decision.live for step in _class_ends(steps)):
            for live in _batches(end, steps):
                for pair in combinations(_contenders(live, smaller, steps, table), 2):
                    found.setdefault((pair[0].cost, pair[1].cost), pair)
            smaller = end.num_tokens
    return list(found.values())


def with_eager_between(todo: Sequence[TimedStep], table: CostTable, steps: StepsToTime) -> list[TimedStep]:
    """``todo``, and eager steps at the ends of each class in which eager may be a contender, right behind the smaller
    one, and in the middle.

    Eager is flat while it waits for the host, and rises once it waits for the device, there in steps: one token more
    than whole tiles of a kernel takes another row of them, and buckets end where tiles do. So within a class its cost
    lies beside what is interpolated, by more than decisions may be off. It takes no less than at the next smaller size.
    """
    found = {step.cost: step for step in todo}
    for kind, same in _by_kind(todo).items():
        eager = sorted((step for step in same if step.decision.key is None), key=lambda step: step.size)
        for lower, upper in pairwise([None, *_class_ends(same)]):
            assert upper is not None, "only the first class has no lower end"
            smaller = 0 if lower is None else lower.decision.live.num_tokens
            below = [step for step in eager if step.size <= smaller] or eager[:1]
            others = [_weighed(live, same) for live in _batches(upper.decision.live, same)]
            least = max((min(_ms(step, table) for step in weighed) for weighed in others if weighed), default=0.0)
            if below and _ms(below[-1], table) <= (1 + _CLOSE) * least:
                for step in _eager_in_class(kind, lower, upper, steps):
                    found.setdefault(step.cost, step)
    return list(found.values())


def in_line(
    least_ms: Mapping[Cost, float], ratios: Mapping[tuple[Cost, Cost], tuple[float, float]]
) -> dict[Cost, float]:
    """Costs whose ratios are, as nearly as all of them can be at once, those that were seen.

    Least squares over the logarithms, as heights are found from a net of levelled differences: a cost that is compared
    with several others settles between what they say of it, so the table stays consistent.

    Args:
        least_ms: milliseconds at their least. They keep the height of each group of costs that are compared.
        ratios: of the first cost of a pair to the second, and its weight, above 0.
    """
    beside: dict[Cost, list[tuple[Cost, float, float]]] = {}
    for (one, other), (ratio, weight) in ratios.items():
        beside.setdefault(one, []).append((other, math.log(ratio), weight))
        beside.setdefault(other, []).append((one, -math.log(ratio), weight))
    first = {cost: math.log(ms) for cost, ms in least_ms.items() if cost in beside}
    now = dict(first)
    for _ in range(_MOST_SWEEPS):
        moved = 0.0
        for cost, others in beside.items():
            total = sum(weight * (now[other] + difference) for other, difference, weight in others)
            weights = sum(weight for *_, weight in others)
            new = (total + _FIRST_WEIGHT * first[cost]) / (weights + _FIRST_WEIGHT)
            moved = max(moved, abs(new - now[cost]))
            now[cost] = new
        if moved < _SETTLED:
            break
    return {cost: math.exp(now[cost]) if cost in now else ms for cost, ms in least_ms.items()}


def _eager_in_class(
    kind: BatchKind, lower: TimedStep | None, upper: TimedStep, steps: StepsToTime
) -> Iterator[TimedStep]:
    likes = [end.like for end in (lower, upper) if end is not None]
    lives = [end.decision.live for end in (lower, upper) if end is not None]
    if kind.uniform_query_len is None and len(lives) == 2 and lives[1].num_tokens - lives[0].num_tokens >= _WIDE:
        smaller, largest = (live.num_tokens for live in lives)
        for num_tokens in (smaller + 1, (smaller + largest) // 2):
            within = dataclasses.replace(upper.like, num_tokens=num_tokens)
            live = steps.live(kind, within)
            if live is not None:
                likes.append(within)
                lives.append(live)
    for like, live in zip(likes, lives, strict=True):
        yield TimedStep(kind=kind, decision=decision_for(live, None), like=like)


def _by_kind(todo: Iterable[TimedStep]) -> dict[BatchKind, list[TimedStep]]:
    found: dict[BatchKind, list[TimedStep]] = {}
    for step in todo:
        found.setdefault(step.kind, []).append(step)
    return found


def _class_ends(steps: Iterable[TimedStep]) -> list[TimedStep]:
    """A step with the fullest batch of each size at which a bucket ends, smallest first."""
    ends = {step.decision.live.num_tokens: step for step in steps if step.decision.key is not None}
    return [ends[size] for size in sorted(ends)]


def _batches(live: LiveBatch, steps: Iterable[TimedStep]) -> list[LiveBatch]:
    """``live``, and one of as many tokens with more requests than full graphs of mixed batches have slots."""
    keys = (step.decision.key for step in steps)
    slots = [key.num_reqs for key in keys if key and key.num_reqs and key.uniform_query_len is None]
    many = max(slots, default=live.num_tokens) + 1
    if live.uniform_query_len is not None or many > live.num_tokens:
        return [live]
    return [live, dataclasses.replace(live, num_reqs=many)]


def _contenders(live: LiveBatch, smaller: int, steps: Sequence[TimedStep], table: CostTable) -> list[TimedStep]:
    """In the usual order; ``smaller``: where the class before ends."""
    weighed = _weighed(live, steps)
    if not weighed:
        return []
    eager = [step for step in steps if step.decision.key is None and smaller <= step.size <= live.num_tokens]
    least_eager = min((_ms(step, table) for step in eager), default=math.inf)
    ceiling = (1 + _CLOSE) * min(least_eager, *(_ms(step, table) for step in weighed))
    near = [step for step in weighed if step is weighed[0] or _ms(step, table) <= ceiling]
    return [*near, *sorted(eager, key=lambda step: step.size)] if least_eager <= ceiling else near


def _weighed(live: LiveBatch, steps: Iterable[TimedStep]) -> list[TimedStep]:
    """The graphs that the policy weighs for ``live``, in its order."""
    groups: dict[str, list[TimedStep]] = {}
    for step in steps:
        key = step.decision.key
        if key is not None and step.size >= live.num_tokens and (key.num_reqs or math.inf) >= (live.num_reqs or 0):
            groups.setdefault(way_of(key), []).append(step)
    ordered = [sorted(groups[way], key=lambda step: step.size) for way in sorted(groups, key=way_order)]
    return [step for group in ordered for step in group[:KEYS_A_GROUP]]


def _ms(step: TimedStep, table: CostTable) -> float:
    ms = table.cost_ms(step.decision.live, step.decision.key)
    assert ms is not None, "every step that is weighed was timed"
    return ms
