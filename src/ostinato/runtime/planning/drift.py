"""Have the sizes that are captured drifted away from the traffic? What other sizes would save. Pure: no torch.

The same number of graphs is compared: the sizes there are, and the best ones for the steps that were counted. Of the
old sizes as many give way as new ones come, those first that leave the smallest gap, so that traffic that was not
seen yet still finds a bucket near its size. The largest size always stays (PITFALLS: the peak above the ladder).
Called by `Graphed.suggest_sizes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ostinato.errors import ConfigError
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.planning.optimise import SizePlan, judge_sizes, optimise_sizes

__all__ = ["PlannedSizes", "SizeChange", "SizeSuggestion", "suggest_change", "suggest_sizes"]

Cost = Callable[[int], float]


@dataclass(frozen=True, kw_only=True)
class PlannedSizes:
    """Buckets by kind of step, ascending; empty where the mode has none.

    Attributes:
        decode: requests of uniform decode.
        mixed: tokens of all other steps.
    """

    decode: tuple[int, ...] = ()
    mixed: tuple[int, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[GraphKey]) -> PlannedSizes:
        """The buckets that ``keys`` have."""
        decode: set[int] = set()
        mixed: set[int] = set()
        for key in keys:
            if key.uniform_query_len is None:
                mixed.add(key.num_tokens)
            elif key.num_reqs is not None:
                decode.add(key.num_reqs)
        return cls(decode=tuple(sorted(decode)), mixed=tuple(sorted(mixed)))


@dataclass(frozen=True, kw_only=True)
class SizeChange:
    """What one kind of step would gain by other sizes.

    Attributes:
        now: the sizes there are, on the steps that were counted.
        then: the suggested ones.
        add: sizes to capture.
        retire: sizes to give back.
        saved_percent: of the cost of the steps, in tokens or in the unit of the cost curve.
    """

    now: SizePlan
    then: SizePlan
    add: tuple[int, ...]
    retire: tuple[int, ...]
    saved_percent: float


@dataclass(frozen=True, kw_only=True)
class SizeSuggestion:
    """New sizes for a running callable, or why there are none.

    Attributes:
        decode: of uniform decode; None: leave them.
        mixed: of all other steps; None: leave them.
        reason: in words, for each kind of step.
    """

    decode: SizeChange | None = None
    mixed: SizeChange | None = None
    reason: str

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to apply."""
        return self.decode is not None or self.mixed is not None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Token buckets as `Graphed.resize` takes them."""
        return None if self.mixed is None else self.mixed.then.sizes

    @property
    def decode_sizes(self) -> tuple[int, ...] | None:
        """Request buckets as `Graphed.resize` takes them."""
        return None if self.decode is None else self.decode.then.sizes

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def suggest_sizes(
    planned: PlannedSizes,
    live: Mapping[str, Mapping[int, int]],
    *,
    limits: Mapping[str, int],
    min_steps: int = 1000,
    min_saved_percent: float = 5.0,
    multiple: int = 1,
    costs: Mapping[str, Cost] | None = None,
) -> SizeSuggestion:
    """Sizes that suit the counted steps better, if they save enough.

    Args:
        planned: the sizes there are.
        live: "decode" and "mixed" -> size -> steps, as the counters have them.
        limits: by kind, the largest size that may be captured; larger steps stay as they are.
        min_steps: of a kind, fewer of which say nothing.
        min_saved_percent: of the cost of the steps, or of the steps that find no bucket; less is not worth a capture.
        multiple: sizes are multiples of it.
        costs: kind -> time of a step by bucket size; tokens where there is none.

    Raises:
        ConfigError: a threshold that is none.
    """
    are_numbers = isinstance(min_steps, int) and isinstance(min_saved_percent, int | float)
    if not are_numbers or min_steps < 1 or not 0 <= min_saved_percent < 100:
        raise ConfigError(
            f"min_steps={min_steps!r}, min_saved_percent={min_saved_percent!r}",
            fix="use 1 step or more, and a percentage from 0 to below 100",
        )
    decode, mixed = Counter(live.get("decode", {})), Counter(live.get("mixed", {}))
    if not planned.decode:  # then a decode runs in a token bucket, a token for each request
        mixed, decode = mixed + decode, Counter()
    changes: dict[str, SizeChange | None] = {}
    reasons = []
    for kind, sizes, counts in (("decode", planned.decode, decode), ("mixed", planned.mixed, mixed)):
        changes[kind] = None
        if not sizes:
            continue
        limit = max(limits[kind], sizes[-1])
        steps = _within(counts, limit=limit, multiple=multiple)
        num_steps = sum(steps.values())
        if num_steps < min_steps:
            reasons.append(f"{kind}: {num_steps} steps were seen, {min_steps} are needed")
            continue
        change = suggest_change(sizes, steps, cost=(costs or {}).get(kind, float))
        caught = change.now.miss_percent - change.then.miss_percent
        told = f"{change.saved_percent:.1f} % less computed" + (f", {caught:.1f} % fewer eager" if caught else "")
        if change.add and max(change.saved_percent, caught) >= min_saved_percent:
            changes[kind] = change
            reasons.append(f"{kind}: {told}")
        else:
            reasons.append(f"{kind}: the sizes suit the traffic; the best ones have {told}")
    return SizeSuggestion(**changes, reason="; ".join(reasons) or "no sizes are captured")


def suggest_change(sizes: Sequence[int], counts: Mapping[int, int], *, cost: Cost = float) -> SizeChange:
    """The best as many sizes for ``counts``, up to the largest of ``sizes`` or a larger live one, and what they save.

    Args:
        sizes: that are captured; at least one.
        counts: live size -> steps; at least one.
        cost: see `optimise_sizes`.
    """
    steps, largest = dict(counts), max(sizes)
    if largest > max(steps):  # one step of it makes it a bucket of every plan at the same price: no choice changes
        steps[largest] = 1
    best = optimise_sizes(steps, max_graphs=len(sizes), cost=cost).sizes
    kept = _thinned(set(best), set(sizes), num_sizes=len(sizes))
    now, then = judge_sizes(counts, sizes, cost=cost), judge_sizes(counts, kept, cost=cost)
    return SizeChange(
        now=now,
        then=then,
        add=tuple(sorted(set(kept) - set(sizes))),
        retire=tuple(sorted(set(sizes) - set(kept))),
        saved_percent=100 * (1 - then.cost / now.cost) if now.cost else 0.0,
    )


def _within(counts: Mapping[int, int], *, limit: int, multiple: int) -> dict[int, int]:
    """Live sizes that may get a bucket, rounded up to ``multiple``."""
    found: Counter[int] = Counter()
    for size, count in counts.items():
        rounded = -(-size // multiple) * multiple
        if rounded <= limit:
            found[rounded] += count
    return dict(found)


def _thinned(wanted: set[int], others: set[int], *, num_sizes: int) -> tuple[int, ...]:
    """``wanted`` and so many of ``others`` as make ``num_sizes``; those go first that leave the smallest gap."""
    sizes = sorted(wanted | others)
    while len(sizes) > num_sizes:
        gaps = [
            (sizes[at + 1] / (sizes[at - 1] if at else 1), at)
            for at in range(len(sizes) - 1)
            if sizes[at] not in wanted
        ]
        sizes.pop(min(gaps)[1])
    return tuple(sizes)
