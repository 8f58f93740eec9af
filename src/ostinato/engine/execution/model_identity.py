"""What tells one model from another of the same name: its family and a digest of its facts.

Weights have an id of their own. Called for the origin of manifests and of files of costs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

from ostinato.engine.models import ModelConfig

__all__ = ["digest", "model_identity"]


def model_identity(model: ModelConfig) -> str:
    """Short enough for a message; differs where any fact of ``model`` does."""
    return f"{model.family} {digest(dataclasses.asdict(model))}"


def digest(values: dict[str, object]) -> str:
    """Of plain values by name, in any order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]
