"""Scheduled batch -> tensors -> model; the one place that calls the runtime's facade."""

from ostinato.engine.execution.examine import examine_steps
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.loading import LoadedModel, load_model
from ostinato.runtime import PlanInspection

__all__ = ["Executor", "LoadedModel", "PlanInspection", "examine_steps", "load_model"]
