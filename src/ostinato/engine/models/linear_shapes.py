"""The linear layers of a decoder as `linear_tuning` measures them. Called by whoever tunes."""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape
from ostinato.engine.models.config import ModelConfig

__all__ = ["linear_shapes"]


def linear_shapes(
    config: ModelConfig, *, dtype: str, buckets: Iterable[int] = (1, 2, 4, 8, 16)
) -> tuple[LinearShape, ...]:
    """Each distinct projection of a layer and the head, at each number of rows in ``buckets``."""
    attended = config.num_heads * config.head_dim
    merged = attended + 2 * config.num_kv_heads * config.head_dim
    hidden = config.hidden_size
    projections = (
        (LinearKind.NORM_LINEAR, merged, hidden),
        (LinearKind.LINEAR_ADD, hidden, attended),
        (LinearKind.NORM_GATED_LINEAR, config.intermediate_size, hidden),
        (LinearKind.LINEAR_ADD, hidden, config.intermediate_size),
        (LinearKind.NORM_LINEAR, config.vocab_size, hidden),
    )
    return tuple(
        LinearShape(kind=kind, num_rows=num_rows, out_features=columns, in_features=depth, dtype=dtype)
        for num_rows in buckets
        for kind, columns, depth in dict.fromkeys(projections)
    )
