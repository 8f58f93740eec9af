"""Scheduled batch -> tensors -> model; the one place that calls the runtime's facade."""

from ostinato.engine.execution.examine import examine_steps
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.loading import LoadedModel, load_model
from ostinato.engine.execution.qualify import qualify_steps
from ostinato.runtime import (
    GraphKey,
    KeyReport,
    PlanInspection,
    QualificationReport,
    ResizeReport,
    SizeSuggestion,
)

__all__ = [
    "Executor",
    "GraphKey",
    "KeyReport",
    "LoadedModel",
    "PlanInspection",
    "QualificationReport",
    "ResizeReport",
    "SizeSuggestion",
    "examine_steps",
    "load_model",
    "qualify_steps",
]
