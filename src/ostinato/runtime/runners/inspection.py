"""What a captured plan consists of: segments with their nodes, breaks with their source, bridges with bytes.

Values to look at, as text, JSON or DOT. Made on demand by `Graphed.inspect`; the command line prints them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ostinato.runtime.runners.break_arguments import ArgumentBytes, add_up
from ostinato.runtime.runners.break_step import BreakStep
from ostinato.runtime.runners.plan import CapturedPlan

__all__ = ["InspectedBreak", "InspectedSegment", "PlanInspection", "inspect_plan"]

_MOST_NAMES = 6  # distinct kernels shown for a segment in text and DOT


@dataclass(frozen=True, slots=True)
class InspectedSegment:
    """One captured graph. ``nodes`` are kernel names, or recorded ops when simulated."""

    nodes: tuple[str, ...]

    def label(self) -> str:
        """Its nodes, most frequent first."""
        counts = Counter(self.nodes).most_common()
        shown = [f"{name} x{count}" if count > 1 else name for name, count in counts[:_MOST_NAMES]]
        more = [f"{len(counts) - _MOST_NAMES} more"] if len(counts) > _MOST_NAMES else []
        return ", ".join(shown + more)


@dataclass(frozen=True, slots=True)
class InspectedBreak:
    """One function that runs eagerly. ``bridge_bytes`` are the sizes of what it hands over by copy, ``arguments`` the
    bytes of what it is given, by owner."""

    name: str
    source: str
    bridge_bytes: tuple[int, ...]
    arguments: ArgumentBytes = field(default_factory=ArgumentBytes)

    def sizes(self) -> list[str]:
        """What it is given and what it hands over, in words; nothing for what there is none of."""
        sums = {"given": self.arguments.owned, "bridges": sum(self.bridge_bytes)}
        return [f"{name} {num_bytes:,} bytes" for name, num_bytes in sums.items() if num_bytes]


@dataclass(frozen=True, slots=True)
class PlanInspection:
    """One key's plan, in execution order."""

    key: str
    entries: tuple[InspectedSegment | InspectedBreak, ...]
    arguments: ArgumentBytes = field(default_factory=ArgumentBytes)
    """Of all its breaks, each storage once."""

    def to_dict(self) -> dict[str, Any]:
        """``{"key", "segments", "breaks", "nodes", "bridge_bytes", "break_argument_bytes", "entries": [...]}``."""
        segments = [e for e in self.entries if isinstance(e, InspectedSegment)]
        breaks = [e for e in self.entries if isinstance(e, InspectedBreak)]
        return {
            "key": self.key,
            "segments": len(segments),
            "breaks": len(breaks),
            "nodes": sum(len(s.nodes) for s in segments),
            "bridge_bytes": sum(sum(b.bridge_bytes) for b in breaks),
            "break_argument_bytes": self.arguments.to_dict(),
            "entries": [_entry_dict(entry) for entry in self.entries],
        }

    def to_text(self) -> str:
        """One line an entry."""
        lines = [self.key]
        for index, entry in enumerate(self.entries):
            if isinstance(entry, InspectedSegment):
                lines.append(f"  {index:3} segment  {len(entry.nodes):5} nodes  {entry.label()}")
            else:
                lines.append(f"  {index:3} break    " + "  ".join([f"{entry.name} at {entry.source}", *entry.sizes()]))
        if self.arguments.owned:
            lines.append(f"  break arguments held: {self.arguments}")
        return "\n".join(lines)

    def to_dot(self) -> str:
        """A Graphviz digraph: segments as boxes, breaks as ellipses with their bytes, in sequence."""
        lines = ["digraph plan {", "  rankdir=TB;", f"  label={_quoted(self.key)};"]
        for index, entry in enumerate(self.entries):
            if isinstance(entry, InspectedSegment):
                label = f"segment: {len(entry.nodes)} nodes\n{entry.label()}"
                lines.append(f"  n{index} [shape=box, label={_quoted(label)}];")
            else:
                label = "\n".join([f"break: {entry.name}", entry.source, *entry.sizes()])
                lines.append(f"  n{index} [shape=ellipse, label={_quoted(label)}];")
        lines += [f"  n{index} -> n{index + 1};" for index in range(len(self.entries) - 1)]
        return "\n".join([*lines, "}"])


def inspect_plan(plan: CapturedPlan) -> PlanInspection:
    """Look into ``plan``; runs nothing."""
    entries: list[InspectedSegment | InspectedBreak] = []
    for entry in plan.entries:
        if isinstance(entry, BreakStep):
            sizes = tuple(t.numel() * t.element_size() for t in entry.bridges)
            entries.append(InspectedBreak(entry.point.name, entry.point.source, sizes, add_up(entry.arguments)))
        else:
            entries.append(InspectedSegment(tuple(entry.nodes())))
    return PlanInspection(str(plan.key), tuple(entries), add_up(plan.break_arguments))


def _entry_dict(entry: InspectedSegment | InspectedBreak) -> dict[str, Any]:
    if isinstance(entry, InspectedSegment):
        return {"kind": "segment", "nodes": list(entry.nodes)}
    return {
        "kind": "break",
        "name": entry.name,
        "source": entry.source,
        "bridge_bytes": list(entry.bridge_bytes),
        "argument_bytes": entry.arguments.to_dict(),
    }


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
