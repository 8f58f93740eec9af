"""Ways to execute one callable: eager, one full graph, or segments between breaks."""

from ostinato.runtime.runners.breakable import BreakableRunner
from ostinato.runtime.runners.eager import run_eager
from ostinato.runtime.runners.full import FullRunner
from ostinato.runtime.runners.layout import RowLayout
from ostinato.runtime.runners.lifecycle import CaptureReport, capture_all
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.runner import Call, Runner

__all__ = [
    "BreakableRunner",
    "Call",
    "CaptureReport",
    "CapturedPlan",
    "FullRunner",
    "RowLayout",
    "Runner",
    "capture_all",
    "run_eager",
]
