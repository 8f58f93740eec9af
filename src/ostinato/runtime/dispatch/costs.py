"""`CostTable`: what a step takes by each way to run it, as measured. Pure values; no torch.

That is, behind another one where steps are served so: what the host or the device needs for it, whichever is more.
A graph costs what its bucket costs, padding included; an eager step costs what its live size costs. Between measured
sizes costs are interpolated. Made by `measure` and `confirm`, kept by `cost_file`, asked by `policy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ostinato.errors import ConfigError
from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode
from ostinato.runtime.planning import CostCurve

__all__ = ["EAGER", "BatchKind", "Cost", "CostSample", "CostTable", "compare_costs", "way_of", "way_order"]

EAGER: Final = "eager"
_WAYS: Final = ("full decode graph", "full graph", "piecewise graph", EAGER)  # in the usual order


def way_of(key: GraphKey | None) -> str:
    """The way to run a step that ``key`` stands for, by the name that decisions use; None is eager."""
    if key is None:
        return EAGER
    if key.runtime_mode is RuntimeMode.PIECEWISE:
        return "piecewise graph"
    return "full graph" if key.uniform_query_len is None else "full decode graph"


def way_order(way: str) -> int:
    """Place of ``way`` in the usual order."""
    return _WAYS.index(way)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKind:
    """Batches that cost alike at one size: uniform decode of one query length, or all others; contexts of one tier."""

    uniform_query_len: int | None = None
    kv_tier: int | None = None

    def __str__(self) -> str:
        name = "mixed" if self.uniform_query_len is None else "decode"
        many = f" query_len={self.uniform_query_len}" if (self.uniform_query_len or 1) > 1 else ""
        return name + many + (f" kv_tier={self.kv_tier}" if self.kv_tier is not None else "")


Cost = tuple[BatchKind, str, int]
"""Kind of batch, way to run it, size: names one cost of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSample:
    """One measurement: what a step takes where it is disturbed least, and how far the middle half of its times spreads.

    It takes from the end of the same step before it to its own end, the host ahead of the device; from an idle device
    to an idle one where steps are waited for one by one (``overlap`` of `Graphed.measure`).

    Not the median: what disturbs a step only ever lengthens it, and on a shared host does so for many turns in a row.
    Where costs decide between each other, they stand in the ratio at which they were seen side by side (`confirm`).

    ``size`` is in tokens: of the bucket for a graph, of the live batch for eager.
    """

    kind: BatchKind
    way: str
    size: int
    ms: float
    spread: float = 0.0
    """Third quartile less first, as a share of the first."""

    @property
    def cost(self) -> Cost:
        """The cost of a table that this is a measurement of."""
        return self.kind, self.way, self.size


@dataclass(frozen=True)
class CostTable:
    """Measured costs of one callable on one device.

    Raises:
        ConfigError: a sample with an unknown way, a size below 1 or a time that is none.
    """

    samples: tuple[CostSample, ...] = ()
    _curves: dict[tuple[BatchKind, str], CostCurve] = field(init=False, repr=False, compare=False, default_factory=dict)
    _tiers: dict[int | None, list[int | None]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        points: dict[tuple[BatchKind, str], dict[int, float]] = {}
        for sample in self.samples:
            if sample.way not in _WAYS:
                raise ConfigError(f"unknown way to run a step: {sample.way!r}", fix=f"valid: {', '.join(_WAYS)}")
            points.setdefault((sample.kind, sample.way), {})[sample.size] = sample.ms
        for name, measured in points.items():
            self._curves[name] = CostCurve(measured, keeps_dips=True)
            tiers = self._tiers.setdefault(name[0].uniform_query_len, [])
            if name[0].kv_tier not in tiers:
                tiers.append(name[0].kv_tier)
        for tiers in self._tiers.values():
            tiers.sort(key=lambda tier: tier or 0)

    def cost_ms(self, live: LiveBatch, key: GraphKey | None) -> float | None:
        """Expected milliseconds of a step of ``live`` by ``key``, or eagerly if that is None; None: not measured."""
        if live.num_active_loras or live.variant:
            return None
        curve = self._curves.get((self._kind_of(live, key), way_of(key)))
        return None if curve is None else curve(live.num_tokens if key is None else key.num_tokens)

    def is_measured(self, live: LiveBatch, key: GraphKey) -> bool:
        """Whether the bucket of ``key`` was timed itself: otherwise `cost_ms` goes by the sizes beside it."""
        asked = (self._kind_of(live, key), way_of(key), key.num_tokens)
        return any(sample.cost == asked for sample in self.samples)

    def _kind_of(self, live: LiveBatch, key: GraphKey | None) -> BatchKind:
        tier = key.kv_tier if key is not None and key.kv_tier is not None else self._tier_of(live)
        return BatchKind(uniform_query_len=live.uniform_query_len, kv_tier=tier)

    def _tier_of(self, live: LiveBatch) -> int | None:
        """The measured tier of a batch's context: the smallest that holds it, or the largest."""
        tiers = self._tiers.get(live.uniform_query_len, [None])
        if None in tiers:
            return None
        context = live.context_tokens
        return next((tier for tier in tiers if context is not None and tier is not None and tier >= context), tiers[-1])

    def to_dict(self) -> list[dict[str, Any]]:
        """One entry for each kind of batch and way to run it: sizes -> milliseconds, and their spread."""
        entries: dict[tuple[BatchKind, str], dict[str, Any]] = {}
        for sample in sorted(self.samples, key=lambda s: s.size):
            entry = entries.setdefault(
                (sample.kind, sample.way),
                {
                    "query_len": sample.kind.uniform_query_len,
                    "kv_tier": sample.kind.kv_tier,
                    "way": sample.way,
                    "ms": {},
                    "spread": {},
                },
            )
            entry["ms"][str(sample.size)] = sample.ms
            entry["spread"][str(sample.size)] = sample.spread
        return list(entries.values())

    @classmethod
    def from_dict(cls, entries: Any) -> CostTable:
        """The table that `to_dict` wrote.

        Raises:
            ConfigError: not such a list; the message names the entry.
        """
        if not isinstance(entries, list):
            raise ConfigError("a table of costs is a list of entries", fix="measure again", got=type(entries).__name__)
        return cls(tuple(sample for entry in entries for sample in _samples(entry)))


def compare_costs(tables: Mapping[str, CostTable]) -> list[dict[str, Any]]:
    """What every way costs at every size that was measured, and the cheapest there.

    Args:
        tables: of the same callable, by how piecewise graphs were made. The other ways are the same in all: the lesser
            time counts.

    Returns:
        ``{"batches", "tokens", "costs": {way: ms}, "best": way}`` by kind and size; piecewise ways name their table.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name, table in tables.items():
        for sample in table.samples:
            way = sample.way.removesuffix(" graph") + (f" ({name})" if sample.way == "piecewise graph" else "")
            costs = found.setdefault((str(sample.kind), sample.size), {})
            costs[way] = min(sample.ms, costs.get(way, sample.ms))
    return [
        {"batches": kind, "tokens": size, "costs": costs, "best": min(costs, key=costs.__getitem__)}
        for (kind, size), costs in sorted(found.items())
    ]


def _samples(entry: Any) -> Iterable[CostSample]:
    try:
        kind = BatchKind(uniform_query_len=_count(entry["query_len"]), kv_tier=_count(entry["kv_tier"]))
        times: Mapping[str, Any] = entry["ms"]
        spreads: Mapping[str, Any] = entry.get("spread", {})
        return [
            CostSample(kind=kind, way=entry["way"], size=int(at), ms=float(ms), spread=float(spreads.get(at, 0.0)))
            for at, ms in times.items()
        ]
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"an entry of costs cannot be read: {error!r}", fix="measure again", got=repr(entry)[:200]
        ) from error


def _count(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"{value!r} is no count")
    return value
