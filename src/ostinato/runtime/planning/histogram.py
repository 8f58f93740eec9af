"""`TrafficHistogram`: how often steps of each size occur, by kind of step. Values from a trace, telemetry or a file.

Pure: no torch, no files. Called by the optimiser's users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ostinato.errors import ConfigError

__all__ = ["MOST_COUNTED", "TrafficHistogram"]

MOST_COUNTED: Final = 2**53
"""Of sizes and of steps: costs are floats, which count no further."""

_KINDS = ("decode", "mixed")


@dataclass(frozen=True, kw_only=True)
class TrafficHistogram:
    """Steps by size.

    Attributes:
        decode: requests in a step of pure decode -> number of such steps.
        mixed: tokens in a step with prompts in it -> number of such steps.

    Raises:
        ConfigError: a size below 1, a negative or fractional count, or no step at all.
    """

    decode: Mapping[int, int] = field(default_factory=dict)
    mixed: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in _KINDS:
            counts = {size: count for size, count in getattr(self, kind).items() if count != 0}
            for size, count in counts.items():
                is_counted = (
                    _is_int(size) and 1 <= size <= MOST_COUNTED and _is_int(count) and 0 <= count <= MOST_COUNTED
                )
                if not is_counted:
                    raise ConfigError(
                        f"the {kind} histogram has {size!r}: {count!r}",
                        fix=f"sizes are whole numbers from 1 on, counts whole numbers from 0 on, to {MOST_COUNTED:,}",
                    )
            object.__setattr__(self, kind, dict(sorted(counts.items())))
        if not self.decode and not self.mixed:
            raise ConfigError("the histogram has no steps", fix="give at least one size with a count above 0")

    @classmethod
    def from_dict(cls, document: Any) -> TrafficHistogram:
        """From ``{"decode": {"29": 1200, ...}, "mixed": {"173": 40, ...}}``, as JSON gives it.

        Raises:
            ConfigError: anything else; it names the entry.
        """
        if not isinstance(document, Mapping) or not set(document) <= set(_KINDS):
            raise ConfigError(
                "a histogram is an object with 'decode' and 'mixed'",
                fix='write {"decode": {"29": 1200}, "mixed": {"173": 40}}',
                got=sorted(map(str, document)) if isinstance(document, Mapping) else type(document).__name__,
            )
        found: dict[str, dict[int, int]] = {}
        for kind, counts in document.items():
            if not isinstance(counts, Mapping):
                raise ConfigError(f"'{kind}' must map sizes to counts", fix='write {"29": 1200, ...}')
            found[kind] = {}
            for size, count in counts.items():
                try:
                    at = int(size)
                except (TypeError, ValueError, OverflowError):
                    raise ConfigError(
                        f"the {kind} histogram has the size {size!r}", fix="sizes are whole numbers from 1 on"
                    ) from None
                if at in found[kind]:
                    raise ConfigError(f"the {kind} histogram has {at} twice", fix="add the two up")
                found[kind][at] = count
        return cls(**found)

    def to_dict(self) -> dict[str, dict[str, int]]:
        """As `from_dict` takes it."""
        return {kind: {str(size): count for size, count in getattr(self, kind).items()} for kind in _KINDS}

    def percentiles(self, kind: str, shares: tuple[int, ...] = (50, 90, 99)) -> dict[str, int]:
        """``{"p50": size, ...}``: the smallest size that so many percent of the steps do not exceed; empty if none."""
        counts: Mapping[int, int] = getattr(self, kind)
        total, found, seen = sum(counts.values()), {}, 0
        wanted = list(shares)
        for size, count in counts.items():
            seen += count
            while wanted and seen * 100 >= wanted[0] * total:
                found[f"p{wanted.pop(0)}"] = size
        return found


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
