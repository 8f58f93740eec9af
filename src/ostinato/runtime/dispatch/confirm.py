"""Measures contenders side by side, and makes a `CostTable` whose ratios are those that were seen. No torch.

`measure` times all steps in turns over seconds, and what it says of two neighbours differs by how fast the host was at
either's turns. Here only steps between which something is decided take turns, one right after the other, in walks
through the sizes, there and back again: what slows one of two neighbours down slows down the other as well, and whoever
has its turn first is second in the next walk. The table stays the only thing that decides. Called by `Graphed.measure`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ostinato.runtime.dispatch.contests import contests, in_line, with_eager_between
from ostinato.runtime.dispatch.costs import Cost, CostTable, way_order
from ostinato.runtime.dispatch.measure import StepsToTime, TimedStep, Timings, cost_sample
from ostinato.runtime.dispatch.turns import TakeTurn

__all__ = ["confirmed_costs"]

_RUNS_A_TURN: Final = 2
"""The same for all, the faster one counts: a single one is hit by whatever else the machine does."""
_MOST_WALKS: Final = 24
_CALM: Final = 4
"""One round in so many counts, the calmest. What waits for the host is slowed down where what waits for the device is
not, so a ratio of the two holds in calm rounds alone; fewer would leave it to single runs."""

_AS_CALM: Final = 0.03
"""Of those, how much slower a round may be than the calmest."""
_AROUND: Final = 4
"""Turns before and after one that tell how fast the host was."""
_SLOW: Final = 0.02
"""Mean excess at which a ratio counts half."""
_COARSE_MS: Final = 1e-6
"""Where a clock says that a step takes no time."""
_FIRST_WALK: Final = 1000
"""Walks are numbered behind all rounds of the first measurement."""

_Turns = Mapping[int, Sequence[float]]
"""Seconds of each run of a step, by the number of the round or walk."""


def confirmed_costs(
    first: Timings,
    steps: StepsToTime,
    *,
    take_turn: TakeTurn,
    budget_seconds: float,
    on_step: Callable[[], None] | None = None,
) -> CostTable:
    """The table of ``first``, its costs that decide between each other moved to the ratios that are seen side by side.

    Args:
        take_turn: see `Turns`.
        budget_seconds: no turn begins that would end later, by the longest that its step has taken so far. All
            that a turn spends counts.
        on_step: told of each turn; how many there are depends on how many steps are near each other.

    Returns:
        All samples of ``first`` in their order, then eager ones at sizes where eager turned out to be near a graph.
        What decides nothing has its least time: a cost that is compared stands at that height too.
    """
    least = first.least
    todo = with_eager_between(first.todo, least, steps)
    pairs = contests(todo, least)
    walk = sorted(
        {step.cost: step for pair in pairs for step in pair}.values(),
        key=lambda step: (str(step.kind), step.decision.live.num_tokens, way_order(step.cost[1]), step.size),
    )
    turns: dict[Cost, _Turns] = {cost: dict(enumerate(rounds)) for cost, rounds in first.turns.items()}
    walked = _walks(walk, steps, take_turn=take_turn, budget_seconds=budget_seconds, on_step=on_step)
    for cost, more in walked.items():
        turns[cost] = {**turns.get(cost, {}), **{_FIRST_WALK + number: runs for number, runs in more.items()}}
    least_ms = {cost: max(1e3 * min(map(min, each.values())), _COARSE_MS) for cost, each in turns.items() if each}
    slowness = _slowness([step.cost for step in first.todo], turns, least_ms, walks=False)
    slowness |= _slowness([step.cost for step in walk], turns, least_ms, walks=True)
    found = {(one.cost, other.cost): _ratio(one.cost, other.cost, turns, slowness) for one, other in pairs}
    settled = in_line(least_ms, {pair: ratio for pair, ratio in found.items() if ratio is not None})
    spread = {sample.cost: sample.spread for sample in first.table.samples}
    return CostTable(tuple(cost_sample(cost, ms, spread.get(cost, 0.0)) for cost, ms in settled.items()))


def _walks(
    walk: Sequence[TimedStep],
    steps: StepsToTime,
    *,
    take_turn: TakeTurn,
    budget_seconds: float,
    on_step: Callable[[], None] | None,
) -> dict[Cost, dict[int, Sequence[float]]]:
    """What each step takes in each walk; the last one may be left half way."""
    runs = {step.cost: steps.step(step.decision, step.like) for step in walk}
    seen: dict[Cost, dict[int, Sequence[float]]] = {step.cost: {} for step in walk}
    longest = dict.fromkeys(seen, 0.0)
    spent = 0.0
    for number in range(_MOST_WALKS):
        for step in walk if number % 2 else reversed(walk):
            cost = step.cost
            if spent + longest[cost] >= budget_seconds:
                return seen
            turn = take_turn(runs[cost], _RUNS_A_TURN)
            seen[cost][number] = turn.seconds
            longest[cost] = max(longest[cost], turn.spent_seconds)
            spent += turn.spent_seconds
            if on_step is not None:
                on_step()
    return seen


def _slowness(
    order: Sequence[Cost], turns: Mapping[Cost, _Turns], least_ms: Mapping[Cost, float], *, walks: bool
) -> dict[tuple[int, Cost], float]:
    """How much longer than ever the turns around each turn took, in the mean: whether the host was slow just then.

    A turn alone does not say so: what waits for the device is not slowed down, and what was timed in slow periods alone
    has never been faster.
    """
    found: dict[tuple[int, Cost], float] = {}
    numbers = {number for cost in order for number in turns[cost] if (number >= _FIRST_WALK) == walks}
    for number in numbers:
        there = [cost for cost in order if number in turns[cost]]
        over = [1e3 * min(turns[cost][number]) / least_ms[cost] - 1 for cost in there]
        for at, cost in enumerate(there):
            found[number, cost] = statistics.fmean(over[max(at - _AROUND, 0) : at + _AROUND + 1])
    return found


def _ratio(
    one: Cost, other: Cost, turns: Mapping[Cost, _Turns], slowness: Mapping[tuple[int, Cost], float]
) -> tuple[float, float] | None:
    """Of two steps' times, the median over the calmest rounds in which both had a turn; and its weight.

    None where there are none, or the clock was too coarse for them.
    """
    both = []
    for number in turns[one].keys() & turns[other].keys():
        found = turns[one][number], turns[other][number]
        count = min(map(len, found))  # the least of more is less
        slow = max(slowness[number, one], slowness[number, other])
        both.append((slow, min(found[0][:count]), min(found[1][:count])))
    if not both or min(min(seconds) for _, *seconds in both) <= 0:
        return None
    both.sort()
    calm = [each for each in both[: -(-len(both) // _CALM)] if each[0] <= both[0][0] + _AS_CALM]
    weight = 1 / (1 + (statistics.fmean(slow for slow, *_ in calm) / _SLOW) ** 2)
    return statistics.median(first / second for _, first, second in calm), weight
