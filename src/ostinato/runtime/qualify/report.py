"""What qualification found: a verdict for each key, what differed, and where first. Values to print or to check."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch

from ostinato.errors import QualificationError
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.runners import OTHER_SHAPE_TOLERANCES, TOLERANCES

__all__ = ["Finding", "FindingKind", "KeyReport", "QualificationReport"]


class FindingKind(StrEnum):
    """What is wrong with a graph."""

    DIFFERS = "DIFFERS"
    """Live outputs are not those of an eager run at the same padded shape."""
    PADDING_LEAKS = "PADDING_LEAKS"
    """Live outputs or live state change with what padded rows hold, or without them: rows depend on each other, or on
    how many there are."""
    STATE_WRITES = "STATE_WRITES"
    """State outside the live set was written, or inside it otherwise than by eager."""
    BAKED_VALUE = "BAKED_VALUE"
    """The graph holds a number that the key does not carry: a break is given another one by an eager run, or two
    captures of the key on different batches differ in it."""
    REFUSED = "REFUSED"
    """The replay raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault of one key."""

    kind: FindingKind
    what: str
    """What differed, and by how much."""
    where: str = ""
    """The first segment, op, break or state tensor that shows it; empty if it cannot be told."""
    case: str = ""
    """The batch on which it showed first."""

    def __str__(self) -> str:
        parts = [f"{self.kind}: {self.what}", *([f"first at {self.where}"] if self.where else [])]
        return "; ".join(parts) + (f" ({self.case})" if self.case else "")


@dataclass(slots=True, kw_only=True)
class KeyReport:
    """One key."""

    key: GraphKey
    num_cases: int = 0
    max_gap: float = 0.0
    """Largest gap of a live output to eager at the same padded shape."""
    max_gap_unpadded: float = 0.0
    """Largest gap of a live output to eager on the live rows alone."""
    num_state_tensors: int = 0
    """State tensors that were compared in each case."""
    time_ratios: dict[str, float] = field(default_factory=dict)
    """Kind of case -> seconds replayed over seconds eager, at the same padded shape."""
    findings: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the key may serve."""
        return not self.findings

    @property
    def time_ratio(self) -> float | None:
        """The worst of `time_ratios`."""
        return max(self.time_ratios.values(), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "key": str(self.key),
            "passed": self.passed,
            "cases": self.num_cases,
            "max_gap": _finite(self.max_gap),
            "max_gap_unpadded": _finite(self.max_gap_unpadded),
            "state_tensors": self.num_state_tensors,
            "time_ratios": self.time_ratios,
            "findings": [
                {"kind": f.kind.value, "what": f.what, "where": f.where, "case": f.case} for f in self.findings
            ],
            "warnings": list(self.warnings),
        }


@dataclass(slots=True, kw_only=True)
class QualificationReport:
    """All keys, in the order in which they were tried."""

    backend: str
    is_bitwise: bool
    """Whether replays had to have the bits of eager at the same padded shape."""
    keys: list[KeyReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not tried."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether something was tried, and no key was quarantined."""
        return any(key.num_cases for key in self.keys) and not self.failed

    @property
    def failed(self) -> list[KeyReport]:
        """The keys that were quarantined."""
        return [key for key in self.keys if not key.passed]

    def check(self) -> None:
        """Raise `QualificationError` naming the first failed key and its finding, or that nothing was tried."""
        for report in self.failed:
            raise QualificationError(
                f"{report.key}: {report.findings[0]}",
                fix="the key is quarantined: its steps run in another graph or eagerly; mend the callable, recapture()",
                failed=len(self.failed),
                keys=len(self.keys),
            )
        if not self.passed:
            raise QualificationError(
                "nothing was tried: there is no graph, or no test batch for one",
                fix="choose a mode with graphs, capture them first, or give cases for their keys",
                keys=len(self.keys),
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {
            "passed": self.passed,
            "backend": self.backend,
            "bitwise": self.is_bitwise,
            "tolerances": _named(TOLERANCES),
            "tolerances_unpadded": _named(OTHER_SHAPE_TOLERANCES),
            "seconds": round(self.seconds, 3),
            "keys": [key.to_dict() for key in self.keys],
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """A line for each key, and its findings below it."""
        lines = [] if self.passed or self.failed else ["nothing was tried"]
        for key in self.keys:
            lines.append(f"{'pass' if key.passed else 'FAIL'}  {key.key}  {key.num_cases} cases")
            lines += [f"      {finding}" for finding in key.findings]
            lines += [f"      warning: {warning}" for warning in key.warnings]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _named(tolerances: dict[torch.dtype, float]) -> dict[str, float]:
    return {str(dtype).removeprefix("torch."): value for dtype, value in tolerances.items()}


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if value != float("inf") else "inf"
