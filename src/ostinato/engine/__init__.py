"""An LLM engine on replayed graphs: requests in, tokens out. Public names are resolved on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato._lazy import lazy_names

if TYPE_CHECKING:
    from ostinato.engine.before_torch import head_start
    from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
    from ostinato.engine.execution.step_query import StepQuery
    from ostinato.engine.llm import LLM
    from ostinato.engine.outputs import RequestOutput
    from ostinato.engine.request import FinishReason, SamplingParams
    from ostinato.engine.updates import RequestUpdate

__all__ = [
    "DEFAULT_MODEL",
    "LLM",
    "EngineConfig",
    "FinishReason",
    "RequestOutput",
    "RequestUpdate",
    "SamplingParams",
    "StepQuery",
    "head_start",
]

_HOMES = {
    "DEFAULT_MODEL": "ostinato.engine.config",
    "EngineConfig": "ostinato.engine.config",
    "FinishReason": "ostinato.engine.request",
    "LLM": "ostinato.engine.llm",
    "RequestOutput": "ostinato.engine.outputs",
    "RequestUpdate": "ostinato.engine.updates",
    "SamplingParams": "ostinato.engine.request",
    "StepQuery": "ostinato.engine.execution.step_query",
    "head_start": "ostinato.engine.before_torch",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
