"""Scheduled batch -> tensors -> model; the one place that calls the runtime's facade."""

from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.loading import LoadedModel, load_model

__all__ = ["Executor", "LoadedModel", "load_model"]
