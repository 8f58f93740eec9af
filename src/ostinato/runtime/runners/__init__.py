"""Ways to execute one callable: eager, one full graph, or segments between breaks."""

from ostinato.runtime.runners.agreement import (
    OTHER_SHAPE_TOLERANCES,
    TOLERANCES,
    Gap,
    find_gap,
    has_same_bits,
    same_bits,
)
from ostinato.runtime.runners.break_arguments import ArgumentBytes, add_up
from ostinato.runtime.runners.break_record import BreakRecord
from ostinato.runtime.runners.break_step import BreakStep, break_inputs
from ostinato.runtime.runners.breakable import BreakableRunner
from ostinato.runtime.runners.captured_keys import CapturedKeys
from ostinato.runtime.runners.delivery import Delivery
from ostinato.runtime.runners.eager import run_eager
from ostinato.runtime.runners.full import FullRunner
from ostinato.runtime.runners.inspection import PlanInspection, inspect_plan
from ostinato.runtime.runners.kept_state import (
    Rows,
    Snapshot,
    generators_kept,
    seeded,
    state_kept,
)
from ostinato.runtime.runners.layout import RowLayout
from ostinato.runtime.runners.lifecycle import CaptureReport, capture_all
from ostinato.runtime.runners.made_up import MadeUpRuns
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.replay_view import Origin, ReplayView
from ostinato.runtime.runners.runner import BoundCall, Call, Runner
from ostinato.runtime.runners.select import make_runners
from ostinato.runtime.runners.step_lock import StepLock
from ostinato.runtime.runners.timing import MarkedDevice, timed, wait_for
from ostinato.runtime.runners.wrapped import WrappedCallable

__all__ = [
    "OTHER_SHAPE_TOLERANCES",
    "TOLERANCES",
    "ArgumentBytes",
    "BoundCall",
    "BreakRecord",
    "BreakStep",
    "BreakableRunner",
    "Call",
    "CaptureReport",
    "CapturedKeys",
    "CapturedPlan",
    "Delivery",
    "FullRunner",
    "Gap",
    "MadeUpRuns",
    "MarkedDevice",
    "Origin",
    "PlanInspection",
    "ReplayView",
    "RowLayout",
    "Rows",
    "Runner",
    "Snapshot",
    "StepLock",
    "WrappedCallable",
    "add_up",
    "break_inputs",
    "capture_all",
    "find_gap",
    "generators_kept",
    "has_same_bits",
    "inspect_plan",
    "make_runners",
    "run_eager",
    "same_bits",
    "seeded",
    "state_kept",
    "timed",
    "wait_for",
]
