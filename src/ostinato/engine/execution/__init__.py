"""Scheduled batch -> tensors -> model; the one place that calls the runtime's facade."""

from ostinato.engine.execution.background import BackgroundCapture
from ostinato.engine.execution.costs import measure_costs
from ostinato.engine.execution.device_lock import DeviceLock
from ostinato.engine.execution.engine_graphs import EngineGraphs
from ostinato.engine.execution.examine import examine_steps
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.loading import LoadedModel, load_model
from ostinato.engine.execution.manifest import CaptureManifest
from ostinato.engine.execution.memory import MemoryForecast, forecast_memory
from ostinato.engine.execution.qualify import qualify_steps
from ostinato.engine.execution.reload import ReloadReport
from ostinato.engine.execution.shadow_turns import ShadowTurns
from ostinato.engine.execution.sleep import SleepReport
from ostinato.engine.execution.step_query import StepQuery
from ostinato.engine.execution.stored_costs import StoredCosts
from ostinato.runtime import (
    CostTable,
    Decision,
    GraphKey,
    KeyReport,
    PlanInspection,
    QualificationReport,
    ResizeReport,
    SizeSuggestion,
)

__all__ = [
    "BackgroundCapture",
    "CaptureManifest",
    "CostTable",
    "Decision",
    "EngineGraphs",
    "Executor",
    "GraphKey",
    "KeyReport",
    "LoadedModel",
    "MemoryForecast",
    "PlanInspection",
    "QualificationReport",
    "ReloadReport",
    "ResizeReport",
    "ShadowTurns",
    "SizeSuggestion",
    "SleepReport",
    "DeviceLock",
    "StepQuery",
    "StoredCosts",
    "examine_steps",
    "forecast_memory",
    "load_model",
    "measure_costs",
    "qualify_steps",
]
