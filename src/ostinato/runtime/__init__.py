"""Replayable graphs for any PyTorch callable. Needs torch and nothing else.

The public names are resolved on first use, so that the pure value types (`keys`, `config`) load no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato._lazy import lazy_names

if TYPE_CHECKING:
    from ostinato.runtime.breaks import break_graph, graph_break, jit_mark
    from ostinato.runtime.buffers import Slot, Tail, Workspace
    from ostinato.runtime.config import GraphConfig
    from ostinato.runtime.dispatch import Decision, ModeRequest, Reason, ResolvedMode, agree_on, resolve_mode
    from ostinato.runtime.doctor import Diagnosis, ModeOutcome, OpFinding, SuggestedBreak, diagnose
    from ostinato.runtime.graphed import Graphed
    from ostinato.runtime.keys import CaptureSupport, Compiler, GraphKey, LiveBatch, Mode, Partition, RuntimeMode, Veto
    from ostinato.runtime.memory import ReservedRegions
    from ostinato.runtime.opaque import opaque_op
    from ostinato.runtime.planning import (
        CostCurve,
        GraphPrice,
        SizeChange,
        SizeSuggestion,
        TrafficHistogram,
        plan_traffic,
    )
    from ostinato.runtime.qualify import (
        Case,
        Culprit,
        Finding,
        FindingKind,
        KeyReport,
        Poison,
        QualificationCases,
        QualificationReport,
        ShadowOwner,
        Writes,
        sizes_to_try,
    )
    from ostinato.runtime.resize import ResizeReport
    from ostinato.runtime.runners import PlanInspection, ReplayView

__all__ = [
    "CaptureSupport",
    "Case",
    "Compiler",
    "CostCurve",
    "Culprit",
    "Decision",
    "Diagnosis",
    "Finding",
    "FindingKind",
    "GraphConfig",
    "GraphKey",
    "GraphPrice",
    "Graphed",
    "KeyReport",
    "LiveBatch",
    "Mode",
    "ModeOutcome",
    "ModeRequest",
    "OpFinding",
    "Partition",
    "PlanInspection",
    "Poison",
    "QualificationCases",
    "QualificationReport",
    "Reason",
    "ReplayView",
    "ReservedRegions",
    "ResizeReport",
    "ResolvedMode",
    "RuntimeMode",
    "ShadowOwner",
    "SizeChange",
    "SizeSuggestion",
    "Slot",
    "SuggestedBreak",
    "Tail",
    "TrafficHistogram",
    "Veto",
    "Workspace",
    "Writes",
    "agree_on",
    "break_graph",
    "diagnose",
    "graph_break",
    "jit_mark",
    "opaque_op",
    "plan_traffic",
    "resolve_mode",
    "sizes_to_try",
]

_HOMES = {
    "CaptureSupport": "ostinato.runtime.keys",
    "Case": "ostinato.runtime.qualify",
    "Compiler": "ostinato.runtime.keys",
    "CostCurve": "ostinato.runtime.planning",
    "Culprit": "ostinato.runtime.qualify",
    "Decision": "ostinato.runtime.dispatch",
    "Diagnosis": "ostinato.runtime.doctor",
    "Finding": "ostinato.runtime.qualify",
    "FindingKind": "ostinato.runtime.qualify",
    "GraphConfig": "ostinato.runtime.config",
    "GraphKey": "ostinato.runtime.keys",
    "GraphPrice": "ostinato.runtime.planning",
    "Graphed": "ostinato.runtime.graphed",
    "KeyReport": "ostinato.runtime.qualify",
    "LiveBatch": "ostinato.runtime.keys",
    "Mode": "ostinato.runtime.keys",
    "ModeOutcome": "ostinato.runtime.doctor",
    "ModeRequest": "ostinato.runtime.dispatch",
    "OpFinding": "ostinato.runtime.doctor",
    "Partition": "ostinato.runtime.keys",
    "PlanInspection": "ostinato.runtime.runners",
    "Poison": "ostinato.runtime.qualify",
    "QualificationCases": "ostinato.runtime.qualify",
    "QualificationReport": "ostinato.runtime.qualify",
    "Reason": "ostinato.runtime.dispatch",
    "ReplayView": "ostinato.runtime.runners",
    "ReservedRegions": "ostinato.runtime.memory",
    "ResizeReport": "ostinato.runtime.resize",
    "ResolvedMode": "ostinato.runtime.dispatch",
    "RuntimeMode": "ostinato.runtime.keys",
    "ShadowOwner": "ostinato.runtime.qualify",
    "SizeChange": "ostinato.runtime.planning",
    "SizeSuggestion": "ostinato.runtime.planning",
    "Slot": "ostinato.runtime.buffers",
    "SuggestedBreak": "ostinato.runtime.doctor",
    "Tail": "ostinato.runtime.buffers",
    "TrafficHistogram": "ostinato.runtime.planning",
    "Veto": "ostinato.runtime.keys",
    "Workspace": "ostinato.runtime.buffers",
    "Writes": "ostinato.runtime.qualify",
    "agree_on": "ostinato.runtime.dispatch",
    "break_graph": "ostinato.runtime.breaks",
    "diagnose": "ostinato.runtime.doctor",
    "graph_break": "ostinato.runtime.breaks",
    "jit_mark": "ostinato.runtime.breaks",
    "opaque_op": "ostinato.runtime.opaque",
    "plan_traffic": "ostinato.runtime.planning",
    "resolve_mode": "ostinato.runtime.dispatch",
    "sizes_to_try": "ostinato.runtime.qualify",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
