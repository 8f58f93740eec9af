"""Pure policy: choose among keys for one live batch, in a fixed order or by measured cost.

No torch. The dispatcher caches the answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ostinato.runtime.dispatch.costs import CostTable, way_of
from ostinato.runtime.dispatch.decision import Decision, Reason, Rejection
from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode, Veto

__all__ = ["HYSTERESIS", "KEYS_A_GROUP", "KeyTable", "choose", "decision_for"]

HYSTERESIS: Final = 0.01
"""The usual order holds unless another graph, or eager, is cheaper by more than this share. Two measurements of the
same step differ, and a choice between near equals would else change from start to start; what it can lose is a third
of what dispatch may be off the best. It never protects a graph that is slower than eager."""
KEYS_A_GROUP: Final = 3
"""Buckets of one kind that are weighed: the next larger one may be faster (another kernel), one far off never is."""

_Group = tuple[RuntimeMode, int | None, bool, int, str]  # mode, query length, counts requests, loras, variant


def _group(key: GraphKey) -> _Group:
    return (key.runtime_mode, key.uniform_query_len, key.num_reqs is not None, key.num_active_loras, key.variant)


@dataclass(slots=True)
class KeyTable:
    """Planned keys, arranged for look-up, with what stands against each."""

    keys: list[GraphKey]
    blocked: dict[GraphKey, Reason] = field(default_factory=dict)
    """Keys that may not be used, and why. Planned keys start as NOT_CAPTURED_YET."""
    _groups: dict[_Group, list[tuple[int, int, GraphKey]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.keys:
            size = key.num_reqs if key.uniform_query_len is not None else key.num_tokens
            self._groups.setdefault(_group(key), []).append((size or 0, key.kv_tier or 0, key))
        for group in self._groups.values():
            group.sort(key=lambda item: item[:2])

    def candidates(self, group: _Group, size: int) -> Iterable[GraphKey]:
        """Keys of ``group`` with at least ``size``, smallest first (size, then KV tier)."""
        entries = self._groups.get(group, [])
        start = bisect_left([entry[0] for entry in entries], size)
        return (key for _, _, key in entries[start:])

    def has(self, group: _Group) -> bool:
        """Whether any key of ``group`` is planned."""
        return group in self._groups


def choose(
    live: LiveBatch, table: KeyTable, *, max_padding: float | None = None, costs: CostTable | None = None
) -> Decision:
    """The best usable key for ``live``: full before piecewise before eager, smallest bucket first.

    Args:
        max_padding: see `GraphConfig.max_padding`.
        costs: with it that order yields to expected cost, wherever that is known: see `_cheapest`.
    """
    if not table.keys:
        return _eager(live, (Rejection("any graph", Reason.DISABLED),))
    rejections: list[Rejection] = []
    usable: list[GraphKey] = []
    for candidate, group, size in _ranking(live, table):
        if live.veto == Veto.GRAPHS or (live.veto == Veto.FULL and group[0] is RuntimeMode.FULL):
            rejections.append(Rejection(candidate, Reason.VETOED, live.veto_reason))
            continue
        most = 1 if costs is None else KEYS_A_GROUP
        keys, reason = _usable_keys(live, table, group, size, max_padding, rejections, most=most)
        if keys and costs is None:
            return decision_for(live, keys[0], alternatives=tuple(rejections))
        if not keys:
            rejections.append(Rejection(candidate, reason))
        usable += keys
    if usable and costs is not None:
        return _cheapest(live, usable, rejections, costs)
    return _eager(live, tuple(rejections), cost_ms=None if costs is None else costs.cost_ms(live, None))


def decision_for(
    live: LiveBatch,
    key: GraphKey | None,
    *,
    alternatives: tuple[Rejection, ...] = (),
    cost_ms: float | None = None,
) -> Decision:
    """The decision to run ``live`` by ``key``, which holds it, or eagerly if that is None."""
    if key is None:
        return _eager(live, alternatives, cost_ms=cost_ms)
    is_exact = key.num_tokens == live.num_tokens and key.num_reqs in (None, live.num_reqs)
    return Decision(
        runtime_mode=key.runtime_mode,
        key=key,
        live=live,
        reason=Reason.EXACT if is_exact else Reason.PADDED,
        padded_tokens=key.num_tokens,
        padded_reqs=live.num_reqs if key.num_reqs is None else key.num_reqs,
        alternatives=alternatives,
        cost_ms=cost_ms,
    )


def _cheapest(live: LiveBatch, usable: list[GraphKey], rejections: list[Rejection], costs: CostTable) -> Decision:
    """The first of ``usable`` (in the usual order, eager last) that is within `HYSTERESIS` of the least cost.

    A graph that is slower than eager is out, by however little. What was not measured is not judged: where the first
    in the order was not, it is taken as without a table; elsewhere it is left, since its order comes later.
    """
    order: list[GraphKey | None] = [*usable, None]
    expected = [costs.cost_ms(live, key) for key in order]
    first, eager_ms = expected[0], expected[-1]
    chosen = 0
    if first is not None:
        least = min(cost for cost in expected if cost is not None)
        ceiling = (1 + HYSTERESIS) * least
        if eager_ms is not None:
            ceiling = min(ceiling, eager_ms)
        chosen = next(at for at, cost in enumerate(expected) if cost is not None and cost <= ceiling)
    taken, cost_ms = order[chosen], expected[chosen]
    for at, (key, cost) in enumerate(zip(order, expected, strict=True)):
        if at != chosen:
            is_slower = at < chosen or (cost is not None and cost_ms is not None and cost > cost_ms)
            reason = Reason.MEASURED_SLOWER if is_slower and cost is not None else Reason.LATER_IN_ORDER
            name = way_of(key) if key is None else str(key)
            rejections.append(Rejection(name, reason, _in_words(cost), key=key, cost_ms=cost))
    if taken is not None:
        return decision_for(live, taken, alternatives=tuple(rejections), cost_ms=cost_ms)
    return _eager(live, tuple(rejections), reason=Reason.MEASURED_SLOWER, cost_ms=cost_ms)


def _in_words(cost_ms: float | None) -> str:
    return "not measured" if cost_ms is None else f"{cost_ms:.3f} ms"


def _ranking(live: LiveBatch, table: KeyTable) -> Iterable[tuple[str, _Group, int]]:
    tail = (live.num_active_loras, live.variant)
    query_len, reqs = live.uniform_query_len, live.num_reqs
    has_decode = any(k.runtime_mode is RuntimeMode.FULL and k.uniform_query_len is not None for k in table.keys)
    if has_decode:
        yield "full decode graph", (RuntimeMode.FULL, query_len or -1, True, *tail), reqs or 0
    mixed: _Group = (RuntimeMode.FULL, None, reqs is not None, *tail)
    if table.has(mixed) or not has_decode:
        yield "full graph", mixed, live.num_tokens
    yield "piecewise graph", (RuntimeMode.PIECEWISE, None, False, *tail), live.num_tokens


def _usable_keys(
    live: LiveBatch,
    table: KeyTable,
    group: _Group,
    size: int,
    max_padding: float | None,
    rejections: list[Rejection],
    *,
    most: int,
) -> tuple[list[GraphKey], Reason]:
    """The smallest keys of ``group`` that ``live`` may use, ``most`` of them; if there is none, why."""
    found: list[GraphKey] = []
    if not table.has(group):
        return found, _why_no_group(live, table, group)
    reason = Reason.OVER_LARGEST
    for key in table.candidates(group, size):
        if not _fits(key, live):
            continue
        blocked = table.blocked.get(key)
        if blocked is not None:
            if not found:
                reason = blocked
                rejections.append(Rejection(str(key), blocked))  # a larger bucket may serve, but the gap must be seen
            continue
        if max_padding is not None and key.num_tokens > max_padding * live.num_tokens:
            return found, Reason.PADDING_OFF if max_padding == 1 else Reason.PADDING_COST
        found.append(key)
        if len(found) == most:
            break
    return found, reason


def _fits(key: GraphKey, live: LiveBatch) -> bool:
    """Whether every size of ``live`` is within ``key``. A size that ``live`` leaves open fits no limit on it."""
    limits = ((key.num_reqs, live.num_reqs), (key.kv_tier, live.context_tokens))
    return key.num_tokens >= live.num_tokens and all(
        limit is None or (size is not None and size <= limit) for limit, size in limits
    )


def _why_no_group(live: LiveBatch, table: KeyTable, group: _Group) -> Reason:
    mode, query_len, _counts_reqs, loras, variant = group
    if variant and not any(k.variant == variant for k in table.keys):
        return Reason.VARIANT
    if loras and not any(k.num_active_loras == loras for k in table.keys):
        return Reason.LORA
    if mode is RuntimeMode.FULL and query_len is not None and live.uniform_query_len is None:
        return Reason.NOT_UNIFORM
    if mode is RuntimeMode.FULL and query_len is not None:
        return Reason.OVER_LARGEST  # uniform, but of a query length that was not planned
    return Reason.DISABLED


def _eager(
    live: LiveBatch,
    rejections: tuple[Rejection, ...],
    *,
    reason: Reason | None = None,
    cost_ms: float | None = None,
) -> Decision:
    ranked = [r.reason for r in rejections if r.reason is not Reason.DISABLED]
    return Decision(
        runtime_mode=RuntimeMode.EAGER,
        key=None,
        live=live,
        reason=reason or (ranked[-1] if ranked else Reason.DISABLED),
        padded_tokens=live.num_tokens,
        padded_reqs=live.num_reqs,
        alternatives=rejections,
        cost_ms=cost_ms,
    )
