"""`EngineWeights`: other weights for a model that serves, written into the tensors that its graphs read.

Files, names, shapes and dtypes are checked before the first byte is written, so a checkpoint that does not fit leaves
the old weights whole. Addresses stay, hence graphs stay valid: they are looked at and some are held against eager, not
captured anew. Owned by `EngineGraphs`.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.loading import LoadedModel, fitting_tensors
from ostinato.engine.execution.qualify import qualify_steps
from ostinato.engine.models import ModelConfig
from ostinato.engine.weights import ProgressReporter, checkpoint_id, copy_tensors, resolve_model
from ostinato.errors import CheckpointError, ConfigError
from ostinato.runtime import GraphKey

__all__ = ["EngineWeights", "ReloadReport"]


@dataclass(frozen=True, kw_only=True)
class ReloadReport:
    """What a reload did."""

    source: str
    """Model whose weights serve now, as it was named."""
    num_tensors: int
    """Written, as the checkpoint counts them."""
    qualified: tuple[GraphKey, ...]
    """Keys whose replays were held against eager with the new weights; none where there are no graphs."""
    seconds: float


class EngineWeights:
    """Where the weights of an engine come from.

    Args:
        loaded: the model.
        executor: of that model.
    """

    def __init__(self, loaded: LoadedModel, executor: Executor) -> None:
        self._config, self._executor = loaded.config, executor
        self.source, self.weights_id = loaded.config.model, loaded.weights_id
        """Which serve: by name, and told from others of that name (`LoadedModel.weights_id`)."""
        self.num_reloads = 0
        self.are_whole = True
        """Whether all are of one model: False once writing broke off in the middle, until a reload succeeds."""

    def reload(self, model: str | None = None, *, progress: ProgressReporter | None = None) -> ReloadReport:
        """Serve with the weights of ``model``; no request may be in progress. See `LLM.reload_weights`."""
        if model is not None and (not isinstance(model, str) or not model):
            raise ConfigError(f"model is {model!r}", fix="name a folder or a model, or leave it out")
        began = time.perf_counter()
        name = self._config.model if model is None else model
        is_dummy = model is None and self._config.load_format == "dummy"
        fitting, weights_id = (None, "dummy") if is_dummy else self._find(name, progress)
        graphed = self._executor.graphed
        self._executor.finish_shadow()  # of a step with the weights that there are
        graphed.apply_guards()  # else graphs would go on with the tensors that were there before
        self.are_whole = False
        if fitting is None:
            self._executor.model.init_dummy(self._config.seed)
        else:
            copy_tensors(fitting, progress=progress)
        if graphed.device.type == "cuda":
            torch.cuda.synchronize(graphed.device)
        self.are_whole, self.source, self.weights_id = True, name, weights_id
        self.num_reloads += 1
        return ReloadReport(
            source=name,
            num_tensors=len(list(self._executor.model.parameters())) if fitting is None else len(fitting),
            qualified=self._verify(),
            seconds=time.perf_counter() - began,
        )

    def to_dict(self) -> dict[str, Any]:
        """``{"source", "reloads", "whole"}``."""
        return {"source": self.source, "reloads": self.num_reloads, "whole": self.are_whole}

    def _find(self, name: str, progress: ProgressReporter | None) -> tuple[list[tuple[Tensor, Tensor]], str]:
        """See `fitting_tensors` and `checkpoint_id`."""
        files = resolve_model(name, progress=progress)
        model = self._executor.model
        _check_same(model.config, ModelConfig.from_hf(files.config), name)
        return fitting_tensors(model, files), checkpoint_id(files.directory)

    def _verify(self) -> tuple[GraphKey, ...]:
        """Look at all that any graph reads, and hold the smallest graph of each kind against eager."""
        graphed = self._executor.graphed
        graphed.check_guards()
        smallest = {  # the last of its kind, since the largest come first
            (key.runtime_mode, key.uniform_query_len): key for key in graphed.plans if graphed.why_blocked(key) is None
        }
        keys = tuple(smallest.values())
        if keys:
            qualify_steps(self._executor, keys=keys, seed=self._config.seed).check()
        return keys


def _check_same(here: ModelConfig, there: ModelConfig, name: str) -> None:
    others = [
        f"{field.name} {getattr(there, field.name)} for {getattr(here, field.name)}"
        for field in dataclasses.fields(ModelConfig)
        if getattr(there, field.name) != getattr(here, field.name)
    ]
    if others:
        raise CheckpointError(
            f"{name} is another model than the one that serves: {', '.join(others)}",
            fix="reload weights of the same model, or open a new LLM for this one",
        )
