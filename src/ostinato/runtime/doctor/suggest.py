"""Which functions to mark: the smallest set of breaks that takes in every blocker.

Candidates are the innermost functions on a blocker's stack, not the root callable, whose break would leave
nothing to capture. Of the sets that hit every blocker, first come those that leave the fewest ops outside of
graphs, then those of the fewest functions. `diagnose` tries them in this order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType

from ostinato.runtime.doctor.findings import SuggestedBreak
from ostinato.runtime.doctor.frames import Stack
from ostinato.runtime.doctor.record import OpRecord
from ostinato.runtime.doctor.routing import Route, find_route

__all__ = ["BreakSet", "break_sets", "in_root"]

_MAX_DEPTH = 4  # functions of one stack that are considered
_MAX_COMBINATIONS = 5000


@dataclass(frozen=True, slots=True)
class BreakSet:
    """Functions to mark together."""

    routes: tuple[Route, ...]
    num_ops_outside: int

    def suggestions(self) -> tuple[SuggestedBreak, ...]:
        """The functions, in the order of their source."""
        found = [
            SuggestedBreak(
                function=getattr(route.code, "co_qualname", route.code.co_name),
                file=route.code.co_filename,
                line=route.code.co_firstlineno,
            )
            for route in self.routes
        ]
        return tuple(sorted(found, key=lambda one: (one.file, one.line)))


def in_root(blockers: Iterable[Stack], records: Sequence[OpRecord]) -> list[Stack]:
    """Blockers that no function below the root callable takes in."""
    coverage = _coverage(records)
    return [stack for stack in blockers if not _candidates(stack, coverage, len(records))]


def break_sets(blockers: Iterable[Stack], records: Sequence[OpRecord]) -> list[BreakSet]:
    """Sets that hit every blocker which any function can hit, best first."""
    coverage = _coverage(records)
    choices: dict[tuple[CodeType, ...], list[Route]] = {}
    for stack in blockers:
        found = _candidates(stack, coverage, len(records))
        if found:
            choices.setdefault(tuple(route.code for route in found), found)
    if not choices:
        return []
    options = list(choices.values())
    while _num_combinations(options) > _MAX_COMBINATIONS:
        longest = max(range(len(options)), key=lambda i: len(options[i]))
        options[longest] = options[longest][:-1]
    ranked: dict[frozenset[CodeType], tuple[tuple[int, int, int], BreakSet]] = {}
    for chosen in itertools.product(*(list(enumerate(routes)) for routes in options)):
        routes = {route.code: route for _, route in chosen}
        outside = set[int]().union(*(coverage[code] for code in routes))
        rank = (len(outside), len(routes), sum(depth for depth, _ in chosen))
        known = ranked.get(frozenset(routes))
        if known is None or rank < known[0]:
            ranked[frozenset(routes)] = rank, BreakSet(tuple(routes.values()), len(outside))
    return [one for _, one in sorted(ranked.values(), key=lambda item: item[0])]


def _candidates(stack: Stack, coverage: dict[CodeType, set[int]], num_ops: int) -> list[Route]:
    """Innermost first. A function that all ops run in is as good as the root, and no candidate."""
    codes = [frame.code for frame in stack.frames]
    found: list[Route] = []
    for depth in range(len(codes) - 1, 0, -1):
        code = codes[depth]
        if code in {route.code for route in found} or len(coverage.get(code, ())) >= num_ops or code is codes[0]:
            continue
        route = find_route(code, codes[:depth])
        if route is not None:
            found.append(route)
        if len(found) == _MAX_DEPTH:
            break
    return found


def _coverage(records: Sequence[OpRecord]) -> dict[CodeType, set[int]]:
    """Code -> numbers of the records that run inside it."""
    coverage: dict[CodeType, set[int]] = {}
    for number, record in enumerate(records):
        for frame in record.stack.frames:
            coverage.setdefault(frame.code, set()).add(number)
    return coverage


def _num_combinations(options: list[list[Route]]) -> int:
    product = 1
    for routes in options:
        product *= len(routes)
    return product
