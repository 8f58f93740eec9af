"""Checkpoints: find a model by name, convert it where needed, and read its tensors.

Called by the engine's start-up and by the CLI. Leaves putting tensors into modules to `models`.
"""

from ostinato.engine.weights.model_files import ModelFiles, checkpoint_dtype
from ostinato.engine.weights.parallel_copy import TensorCopies, copy_tensors
from ostinato.engine.weights.progress import ProgressReporter, SilentProgress
from ostinato.engine.weights.resolve import resolve_model
from ostinato.engine.weights.tensor_files import checkpoint_bytes, checkpoint_id, iter_safetensors

__all__ = [
    "ModelFiles",
    "ProgressReporter",
    "SilentProgress",
    "TensorCopies",
    "checkpoint_bytes",
    "checkpoint_dtype",
    "checkpoint_id",
    "copy_tensors",
    "iter_safetensors",
    "resolve_model",
]
