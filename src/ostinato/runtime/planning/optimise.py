"""The best bucket sizes for a histogram: an exact dynamic programme over it.

Sorted live sizes fall into consecutive groups, each served by a bucket of its largest size. With C the running count
and c the cost of a bucket, the best cost of k groups that end at j is

    best[k][j] = min over i < j of best[k-1][i] + c(j) * (C[j] - C[i])

For one k that is, at each j, the lowest of lines with slope -C[i], whose slopes fall as i grows, at points c(j) that
rise: a convex hull and a pointer that only moves right, so K buckets over m sizes take O(K m). Pure: no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ostinato.errors import ConfigError

__all__ = ["SizeChoices", "SizePlan", "judge_sizes", "optimise_sizes"]


@dataclass(frozen=True, kw_only=True)
class SizePlan:
    """Buckets and what they cost on a histogram.

    Attributes:
        sizes: ascending.
        pad_percent: share of the tokens computed in buckets that are padding.
        miss_percent: share of the steps that are larger than every bucket, hence run eagerly.
        cost: sum over steps of the cost of their bucket, in the unit of the cost curve (tokens by default).
    """

    sizes: tuple[int, ...]
    pad_percent: float
    miss_percent: float
    cost: float


class SizeChoices:
    """The cheapest buckets of a histogram for every number of them, from one run of the programme.

    Args:
        counts: live size -> steps; not empty.
        max_graphs: at least 1.
        cost: of one step in a bucket of this size, finite and not falling as sizes grow; the default counts tokens.

    Attributes:
        costs: of the steps, with 1, 2, ... buckets; falls, and ends where one more would save nothing.

    Raises:
        ConfigError: no sizes, no graphs, or a cost that falls.
    """

    def __init__(self, counts: Mapping[int, int], *, max_graphs: int, cost: Callable[[int], float] = float) -> None:
        live = sorted(size for size, count in counts.items() if count > 0)
        if not live or max_graphs < 1:
            raise ConfigError("there is nothing to plan", fix="give at least one live size and one graph")
        costs = [cost(size) for size in live]
        if any(later < earlier for earlier, later in itertools.pairwise(costs)):
            raise ConfigError(
                "the cost curve falls as sizes grow", fix="smooth the measurements, or take their running maximum"
            )
        running = [0]
        for size in live:
            running.append(running[-1] + counts[size])
        best = [costs[j] * running[j + 1] for j in range(len(live))]  # one bucket
        totals = [best[-1]]
        choices: list[list[int]] = []
        for _ in range(1, min(max_graphs, len(live))):
            best, chosen = _one_more_bucket(best, costs, running)
            if best[-1] >= totals[-1]:
                break
            totals.append(best[-1])
            choices.append(chosen)
        self.costs = tuple(totals)
        self._counts, self._cost, self._live, self._choices = counts, cost, live, choices

    def plan(self, num_graphs: int) -> SizePlan:
        """The cheapest so many buckets; the largest live size is always one of them."""
        sizes = _walk_back(self._live, self._choices[: num_graphs - 1])
        return judge_sizes(self._counts, sizes, cost=self._cost)


def optimise_sizes(counts: Mapping[int, int], *, max_graphs: int, cost: Callable[[int], float] = float) -> SizePlan:
    """The cheapest at most ``max_graphs`` buckets; the largest live size is always one of them.

    Arguments and errors are those of `SizeChoices`.
    """
    choices = SizeChoices(counts, max_graphs=max_graphs, cost=cost)
    return choices.plan(len(choices.costs))


def judge_sizes(counts: Mapping[int, int], sizes: Sequence[int], *, cost: Callable[[int], float] = float) -> SizePlan:
    """What given buckets cost on a histogram; steps above the largest are misses and cost their own size."""
    buckets = sorted(set(sizes))
    padded = live = misses = 0
    total_cost, at = 0.0, 0
    for size, count in sorted(counts.items()):
        while at < len(buckets) and buckets[at] < size:
            at += 1
        if at == len(buckets):
            misses += count
            total_cost += cost(size) * count
            continue
        padded += (buckets[at] - size) * count
        live += size * count
        total_cost += cost(buckets[at]) * count
    steps = sum(counts.values())
    return SizePlan(
        sizes=tuple(buckets),
        pad_percent=100 * padded / (padded + live) if padded + live else 0.0,
        miss_percent=100 * misses / steps if steps else 0.0,
        cost=total_cost,
    )


def _one_more_bucket(
    best: Sequence[float], costs: Sequence[float], running: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Best costs with one bucket more, and for each end the group before the last bucket's: -1 if there is none."""
    hull: list[int] = []  # groups i, the lines best[i] - running[i + 1] * x
    at = 0  # the lowest line at x moves right as x grows
    following: list[float] = []
    chosen: list[int] = []
    for j, x in enumerate(costs):
        alone = x * running[j + 1]
        lowest, of = 0.0, -1  # no group before
        if hull:
            at = min(at, len(hull) - 1)
            value = best[hull[at]] - running[hull[at] + 1] * x
            while at + 1 < len(hull):
                next_value = best[hull[at + 1]] - running[hull[at + 1] + 1] * x
                if next_value > value:
                    break
                at, value = at + 1, next_value
            if value < 0.0:
                lowest, of = value, hull[at]
        following.append(lowest + alone)
        chosen.append(of)
        while len(hull) >= 2 and _is_hidden(best, running, hull[-2], hull[-1], j):
            hull.pop()
        hull.append(j)
    return following, chosen


def _is_hidden(best: Sequence[float], running: Sequence[int], a: int, b: int, c: int) -> bool:
    """Whether line b is nowhere below both a and c (slopes fall from a to c)."""
    left = (best[c] - best[a]) * (running[b + 1] - running[a + 1])
    return left <= (best[b] - best[a]) * (running[c + 1] - running[a + 1])


def _walk_back(live: Sequence[int], choices: Sequence[Sequence[int]]) -> list[int]:
    sizes, at = [live[-1]], len(live) - 1
    for chosen in reversed(choices):
        at = chosen[at]
        if at < 0:
            break
        sizes.append(live[at])
    return sorted(sizes)
