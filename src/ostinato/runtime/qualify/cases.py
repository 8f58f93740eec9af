"""What a key is tried on: `Case`, the `QualificationCases` Protocol, and random batches as the default.

An owner of state (an engine) gives cases of its own, since only it knows which batches are legal and which state
they may write. The default fills the slots of any callable with seeded random rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from ostinato.errors import ConfigError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Sizes, Slot
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.qualify.poison import Poison
from ostinato.runtime.qualify.states import Writes
from ostinato.runtime.runners import MadeUpRuns

__all__ = ["Case", "QualificationCases", "RandomCases", "WatchesMore", "live_counts", "sizes_to_try"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One batch for one key."""

    name: str
    """What it is, for the report: ``3 of 4 rows, mix 1, padding nan``."""
    live: LiveBatch
    fill: Callable[[], None]
    """Writes the static buffers at the key's sizes, tails too, and whatever the callable looks up while it runs: its
    metadata, the history in its state. Called before each run, and does the same each time."""
    cut: Callable[[Any], Any]
    """The live part of padded outputs, as views."""
    exact: Callable[[], Any] | None = None
    """Runs the callable eagerly on the live rows alone and returns what `cut` would; None: nothing is padded."""
    repad: Callable[[], None] | None = None
    """After `fill`: gives padded rows other legal contents, integers too. Live rows must not notice, by any bit; None
    if there is nothing to change."""
    poison: Poison = Poison.NONE
    kind: str = ""
    """Cases of one kind are timed together (long contexts, say)."""
    writes: Mapping[str, Writes] = field(default_factory=dict)
    """State tensor -> the rows that this batch may write."""


class QualificationCases(Protocol):
    """Test batches of whoever owns a callable's state."""

    def of(self, key: GraphKey) -> Iterable[Case]:
        """Legal batches of ``key``: exact fit, one short, half, minimum; several mixes and contexts."""
        ...

    def state(self) -> Mapping[str, torch.Tensor]:
        """Every tensor that a step may write, by name, one entry in dimension 0 a slot."""
        ...


@runtime_checkable
class WatchesMore(Protocol):
    """Cases that also name memory which no step may write, too large to be copied."""

    def unwritten(self) -> Mapping[str, torch.Tensor]:
        """Contiguous tensors by name; each replay must leave their bytes as they are."""
        ...


def sizes_to_try(largest: int) -> list[int]:
    """Exact fit, one short, half, minimum."""
    return sorted({largest, max(largest - 1, 1), max(largest // 2, 1), 1}, reverse=True)


def live_counts(key: GraphKey) -> list[LiveBatch]:
    """Live sizes to try on ``key``, from exact fit down to the minimum."""
    query_len = key.uniform_query_len
    if query_len is not None and key.num_reqs is not None:
        return [
            LiveBatch(num_tokens=n * query_len, num_reqs=n, uniform_query_len=query_len)
            for n in sizes_to_try(key.num_reqs)
        ]
    return [
        LiveBatch(num_tokens=n, num_reqs=None if key.num_reqs is None else min(n, key.num_reqs))
        for n in sizes_to_try(key.num_tokens)
    ]


def describe(live: LiveBatch, key: GraphKey, *more: str) -> str:
    """A case's name."""
    return ", ".join([f"{live.num_tokens} of {key.num_tokens} rows", *more])


class RandomCases:
    """Seeded random rows for the slots of any callable; two mixes of values, all kinds of padding.

    Args:
        runs: of the callable: its buffers, and the metadata that is made before the rows are written.
        cut: the live part of outputs with so many live tokens.
        state: tensors that the callable may write.
        ranges: slot -> half-open range of its integers, where the slot does not declare one.
        seed: of the values.
    """

    def __init__(
        self,
        runs: MadeUpRuns,
        *,
        cut: Callable[[Any, int], Any],
        state: Mapping[str, torch.Tensor],
        ranges: Mapping[str, tuple[int, int]],
        seed: int = 0,
    ) -> None:
        wrapped, buffers = runs.wrapped, runs.wrapped.buffers
        unknown = [name for name, slot in buffers.slots.items() if slot.extra]
        if unknown:
            raise ConfigError(
                f"random rows cannot stand for the cumulative offsets in slots {unknown}",
                fix="pass qualify(cases=...), batches of your own",
            )
        self._runs = runs
        self._wrapped = wrapped
        self._buffers = buffers
        self._cut = cut
        self._state = dict(state)
        self._ranges = ranges
        self._seed = seed

    def state(self) -> Mapping[str, torch.Tensor]:
        """See `QualificationCases.state`."""
        return self._state

    def of(self, key: GraphKey) -> Iterator[Case]:
        """See `QualificationCases.of`."""
        for live in live_counts(key):
            is_padded = live.num_tokens < key.num_tokens
            for mix in (0, 1):
                values = self._values(live, self._wrapped.key_sizes(key), mix)
                for poison in Poison if is_padded else (Poison.NONE,):
                    pads = [f"padding {poison.value}"] if is_padded else []
                    yield self._case(key, live, values, poison, describe(live, key, f"mix {mix}", *pads))

    def _case(self, key: GraphKey, live: LiveBatch, values: dict[str, torch.Tensor], poison: Poison, name: str) -> Case:
        padded = self._wrapped.key_sizes(key)

        def fill() -> None:
            self._runs.prepare(key)
            self._wrapped.load(values, live, padded)

        is_padded = live.num_tokens < key.num_tokens
        return Case(
            name=name,
            live=live,
            fill=fill,
            cut=lambda outputs: self._cut(outputs, live.num_tokens),
            exact=self._wrapped.bind_to(values) if is_padded and not self._runs.is_prepared else None,
            poison=poison,
        )

    def _values(self, live: LiveBatch, padded: Sizes, mix: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(self._seed * 1009 + live.num_tokens * 2 + mix)
        counts = {NUM_TOKENS: live.num_tokens, NUM_REQS: min(live.num_reqs or live.num_tokens, padded[NUM_REQS])}
        return {
            name: self._random(name, slot, slot.rows(counts), mix, random).to(self._buffers.arena.device)
            for name, slot in self._buffers.slots.items()
        }

    def _random(self, name: str, slot: Slot, rows: int | None, mix: int, random: torch.Generator) -> torch.Tensor:
        shape = tuple((rows or 0) if size is None else size for size in slot.shape)
        if slot.dtype.is_floating_point or slot.dtype.is_complex:
            wide = torch.complex128 if slot.dtype.is_complex else torch.float64
            values = torch.randn(shape, generator=random, dtype=wide)
            return (values if mix == 0 else values.abs() * 3 + 0.1).to(slot.dtype)
        if slot.dtype is torch.bool:
            return torch.rand(shape, generator=random) < (0.5, 0.9)[mix]
        low, high = slot.valid_range or self._ranges.get(name, (0, 1))
        return torch.randint(low, max(high, low + 1), shape, generator=random, dtype=torch.int64).to(slot.dtype)
