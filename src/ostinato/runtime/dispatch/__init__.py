"""Choose key and mode for each step, with a reason."""

from ostinato.runtime.dispatch.confirm import confirmed_costs
from ostinato.runtime.dispatch.cost_file import check_costs_path, parse_costs, read_costs, write_costs
from ostinato.runtime.dispatch.costs import BatchKind, CostSample, CostTable, compare_costs
from ostinato.runtime.dispatch.decision import Decision, Reason, Rejection
from ostinato.runtime.dispatch.dispatcher import Dispatcher
from ostinato.runtime.dispatch.graph_curves import graph_curves
from ostinato.runtime.dispatch.measure import StepsToTime, TimedStep, steps_to_time, time_steps
from ostinato.runtime.dispatch.policy import HYSTERESIS, KeyTable, choose, decision_for
from ostinato.runtime.dispatch.preview import planned_keys, preview
from ostinato.runtime.dispatch.ranks import agree_on
from ostinato.runtime.dispatch.resolve import ModeRequest, ResolvedMode, resolve_mode
from ostinato.runtime.dispatch.turns import StepRun, Turn, Turns

__all__ = [
    "HYSTERESIS",
    "BatchKind",
    "CostSample",
    "CostTable",
    "Decision",
    "Dispatcher",
    "KeyTable",
    "ModeRequest",
    "Reason",
    "Rejection",
    "ResolvedMode",
    "StepRun",
    "StepsToTime",
    "TimedStep",
    "Turn",
    "Turns",
    "agree_on",
    "check_costs_path",
    "choose",
    "compare_costs",
    "confirmed_costs",
    "decision_for",
    "graph_curves",
    "parse_costs",
    "planned_keys",
    "preview",
    "read_costs",
    "resolve_mode",
    "steps_to_time",
    "time_steps",
    "write_costs",
]
