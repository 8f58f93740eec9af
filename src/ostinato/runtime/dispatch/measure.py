"""Measuring a `CostTable`: which steps to time, and the first times of all of them. No torch: the steps and the clock
come from outside, and how a turn is timed from `turns`.

All steps are timed in turns, there and back again, so that a drift of the machine's clock hits all alike. What decides
between near equals is seen by `confirm`. Called by `Graphed.measure`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ostinato.runtime.dispatch.costs import BatchKind, Cost, CostSample, CostTable, way_of
from ostinato.runtime.dispatch.decision import Decision
from ostinato.runtime.dispatch.policy import KEYS_A_GROUP, decision_for
from ostinato.runtime.dispatch.turns import StepRun, TakeTurn, Turn
from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode

__all__ = [
    "StepsToTime",
    "TimedStep",
    "Timings",
    "cost_sample",
    "spaced",
    "steps_to_time",
    "time_steps",
]

_MOST_APART: Final = 1.5
"""Ratio of neighbouring sizes at which eager is measured. Between them its cost is taken to be linear; that of graphs
is not, since kernels change with the bucket: each is measured."""
_ROUNDS: Final = 8
"""Even: there and back again. Of a steady drift a sixteenth is left in what is compared."""
_MOST_REPEATS: Final = 32


class StepsToTime(Protocol):
    """Made-up steps of whoever knows what a step is."""

    def live(self, kind: BatchKind, key: GraphKey) -> LiveBatch | None:
        """The fullest batch of ``kind`` that ``key`` holds; None if it can hold none, or none can be made up.

        ``key`` may be of a size between two that are planned: eager is timed there.
        """
        ...

    def step(self, decision: Decision, like: GraphKey) -> StepRun:
        """A step by ``decision``, whose batch is `live` of ``like``."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Every tensor that these steps write, by name: it is put back afterwards."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One step to time: a batch by a key, or eagerly (``decision.key`` is None)."""

    kind: BatchKind
    decision: Decision
    like: GraphKey
    """The key that the batch was made for."""

    @property
    def size(self) -> int:
        """What its cost is filed under: tokens of the bucket, or live tokens of an eager step."""
        return self.decision.padded_tokens

    @property
    def cost(self) -> Cost:
        """The cost of a table that this step is timed for."""
        return self.kind, way_of(self.decision.key), self.size


def steps_to_time(
    keys: Iterable[GraphKey],
    steps: StepsToTime,
    *,
    query_lens: Sequence[int],
    tiers: Sequence[int] | None,
    sizes: Sequence[int] | None = None,
) -> list[TimedStep]:
    """What to time, smallest first; the ways to run one size stand together.

    Args:
        keys: those that may be used.
        query_lens: tokens that a request brings in uniform decode; empty if the callable knows no requests.
        tiers: KV tiers, if keys have any.
        sizes: only buckets of these numbers of tokens. None: all; eager at the smallest, the largest, and some between.
    """
    keys = [key for key in keys if not key.num_active_loras and not key.variant]
    has_mixed_tiers = any(key.kv_tier is not None and key.uniform_query_len is None for key in keys)
    kinds = [BatchKind(kv_tier=tier) for tier in (tiers or (None,) if has_mixed_tiers else (None,))]
    kinds += [BatchKind(uniform_query_len=n, kv_tier=tier) for n in query_lens for tier in tiers or (None,)]
    found: dict[Cost, TimedStep] = {}
    for kind in kinds:
        for way in dict.fromkeys(way_of(key) for key in keys):
            lives = _lives([key for key in keys if way_of(key) == way and _serves(key, kind)], kind, steps)
            for key in _sampled(list(lives), sizes):
                step = TimedStep(kind=kind, decision=decision_for(lives[key], key), like=key)
                found.setdefault(step.cost, step)
            chosen = spaced([key.num_tokens for key in lives]) if sizes is None else sizes
            for key in _sampled(list(lives), chosen):
                step = TimedStep(kind=kind, decision=decision_for(lives[key], None), like=key)
                found.setdefault(step.cost, step)
    return sorted(found.values(), key=lambda step: step.size)


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What steps took when they took turns."""

    todo: tuple[TimedStep, ...]
    turns: Mapping[Cost, Sequence[Sequence[float]]]
    """Seconds of each run, by rounds in which all steps had a turn."""

    @property
    def table(self) -> CostTable:
        """The first quartile of all runs of each step."""
        return CostTable(tuple(_sample(step, self._runs(step)) for step in self.todo))

    @property
    def least(self) -> CostTable:
        """The least of all runs of each step: where a host was slow in most of its turns, the quartile says nothing."""
        return CostTable(tuple(cost_sample(step.cost, 1e3 * min(self._runs(step)), 0.0) for step in self.todo))

    def _runs(self, step: TimedStep) -> list[float]:
        return [seconds for turn in self.turns[step.cost] for seconds in turn]


def time_steps(
    todo: Sequence[TimedStep],
    steps: StepsToTime,
    *,
    take_turn: TakeTurn,
    budget_seconds: float,
    on_step: Callable[[], None] | None = None,
) -> Timings:
    """Time every step of ``todo`` several times over.

    Args:
        take_turn: see `Turns`.
        budget_seconds: to spend on all of them, the same for each: a turn to get warm and eight to be timed, at
            whatever price. What is left of its share buys a step repeats, so that short steps have more. All that a
            turn spends counts.
        on_step: told of each turn, nine for each step in all (for a progress bar).
    """
    runs = [steps.step(step.decision, step.like) for step in todo]
    turns: dict[Cost, list[Sequence[float]]] = {step.cost: [] for step in todo}

    def turn(at: int, count: int) -> Turn:
        found = take_turn(runs[at], count)
        if on_step is not None:
            on_step()
        return found

    share = budget_seconds / max(len(todo), 1)
    repeats = [_repeats(turn(at, 1), share) for at in range(len(todo))]
    for number in range(_ROUNDS):
        order = range(len(todo)) if number % 2 else reversed(range(len(todo)))
        for at in order:
            turns[todo[at].cost].append(turn(at, repeats[at]).seconds)
    return Timings(todo=tuple(todo), turns=turns)


def spaced(sizes: Sequence[int], *, ratio: float = _MOST_APART) -> list[int]:
    """The smallest and the largest of ``sizes``, and between them as few as leave no two further apart than ``ratio``
    times, where ``sizes`` are that dense."""
    ordered = sorted(set(sizes))
    kept = ordered[:1]
    for size, following in zip(ordered[1:], [*ordered[2:], None], strict=False):
        if following is None or following > ratio * kept[-1]:
            kept.append(size)
    return kept


def _repeats(warm: Turn, share_seconds: float) -> int:
    """Runs a turn with which a step spends its share, of which the turn ``warm`` of one run is spent already."""
    (run,) = warm.seconds
    left = (share_seconds - warm.spent_seconds) / _ROUNDS - (warm.spent_seconds - run)  # a turn's own part goes first
    affordable = left / run if run > 0 else _MOST_REPEATS
    return int(max(1, min(affordable, _MOST_REPEATS / _ROUNDS)))


def _lives(keys: Iterable[GraphKey], kind: BatchKind, steps: StepsToTime) -> dict[GraphKey, LiveBatch]:
    """Smallest first, the fullest batch of each key; none for keys that hold no more than a smaller one, but for as
    many as are weighed for such a batch."""
    found: dict[GraphKey, LiveBatch] = {}
    for key in sorted(keys, key=lambda key: key.num_tokens):
        live = steps.live(kind, key)
        if live is not None and list(found.values()).count(live) < KEYS_A_GROUP:
            found[key] = live
    return found


def _sampled(keys: Sequence[GraphKey], sizes: Sequence[int] | None) -> list[GraphKey]:
    return [key for key in keys if sizes is None or key.num_tokens in sizes]


def _serves(key: GraphKey, kind: BatchKind) -> bool:
    """Whether a batch of ``kind`` may run by ``key``, and its cost belongs there."""
    if key.uniform_query_len not in (None, kind.uniform_query_len):
        return False
    return key.runtime_mode is RuntimeMode.PIECEWISE or key.kv_tier in (None, kind.kv_tier)


def cost_sample(cost: Cost, ms: float, spread: float) -> CostSample:
    """``ms`` of ``cost`` as tables keep it."""
    kind, way, size = cost
    # To the nanosecond, so that a file keeps it to the last digit and the next start decides the same.
    # A clock may be too coarse for a step that does nothing.
    return CostSample(kind=kind, way=way, size=size, ms=max(round(ms, 6), 1e-6), spread=round(spread, 4))


def _sample(step: TimedStep, seconds: Sequence[float]) -> CostSample:
    first, _, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return cost_sample(step.cost, first * 1e3, (third - first) / first if first else 0.0)
