"""What a diagnosis says: frozen values, and how they turn into plain ones for ``--json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ostinato.runtime.ops import Verdict

__all__ = ["Diagnosis", "ModeOutcome", "OpFinding", "SuggestedBreak"]


@dataclass(frozen=True, kw_only=True)
class OpFinding:
    """All calls of one op on one line that got one verdict."""

    op: str
    verdict: Verdict
    reason: str
    """Why it is not friendly; for a friendly one empty, or the declared break that it runs in."""
    file: str
    line: int
    """Of the user's innermost frame. 0 and an empty file: no Python frame made the call."""
    count: int
    share: float
    """Of the time of all ops in one eager run, 0 to 1."""
    function: str = ""
    detail: str = ""
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "verdict": self.verdict.value}


@dataclass(frozen=True, kw_only=True)
class SuggestedBreak:
    """A function that should get the mark ``@graph_break``."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class ModeOutcome:
    """What one way of capturing gives, tried."""

    is_captured: bool
    num_segments: int = 0
    num_breaks: int = 0
    num_nodes: int = 0
    replay: str = "not checked"
    """On other rows against eager: "equal", "different", "refused" or "not checked"."""
    error: dict[str, Any] | None = None
    """`OstinatoError.to_dict()`, or type and message of another exception."""
    warnings: tuple[str, ...] = ()
    with_suggested_breaks: bool = False
    holds_blockers: bool = False
    """Whether something that blocks is inside its segments: nothing refused it, and replays would be wrong."""

    @property
    def works(self) -> bool:
        """Whether it was captured, holds no blocker, and its replay did not contradict eager."""
        return self.is_captured and not self.holds_blockers and self.replay not in ("different", "refused")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "works": self.works,
            "captured": self.is_captured,
            "segments": self.num_segments,
            "breaks": self.num_breaks,
            "nodes": self.num_nodes,
            "replay": self.replay,
            "with_suggested_breaks": self.with_suggested_breaks,
            "error": self.error,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The answer of `diagnose`."""

    verdict: Verdict
    """The worst of all ops: UNFRIENDLY means that something blocks capture, or that replays would be wrong."""
    ops: tuple[OpFinding, ...]
    suggested_breaks: tuple[SuggestedBreak, ...]
    modes: dict[str, ModeOutcome]
    """"full", "piecewise" (a traced partition) and "breakable"; the latter two with the suggested breaks."""
    advice: tuple[str, ...] = ()
    """What to do that no mark on an existing function does."""
    notes: tuple[str, ...] = ()
    """What could not be checked, and why."""
    num_ops: int = 0

    @property
    def blockers(self) -> tuple[OpFinding, ...]:
        """The unfriendly ones among `ops`."""
        return tuple(op for op in self.ops if op.verdict is Verdict.UNFRIENDLY)

    @property
    def is_blocked(self) -> bool:
        """Whether anything blocks capture as the code stands."""
        return bool(self.blockers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``ostinato doctor --json`` prints them."""
        return {
            "verdict": self.verdict.value,
            "ops": [op.to_dict() for op in self.ops],
            "blockers": [op.to_dict() for op in self.blockers],
            "suggested_breaks": [asdict(one) for one in self.suggested_breaks],
            "modes": {name: outcome.to_dict() for name, outcome in self.modes.items()},
            "advice": list(self.advice),
            "notes": list(self.notes),
        }
