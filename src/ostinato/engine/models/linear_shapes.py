"""The linear layers of a decoder as `linear_tuning` measures them. Called by whoever tunes."""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.engine.layers.linear_tiles import ROW_BUCKETS, LinearKind, LinearShape, row_bucket
from ostinato.engine.models.config import ModelConfig

__all__ = ["linear_shapes"]


def linear_shapes(config: ModelConfig, *, dtype: str, rows: Iterable[int] = ROW_BUCKETS) -> tuple[LinearShape, ...]:
    """Each distinct projection of a layer and the head, at each bucket of ``rows``."""
    attended = config.num_heads * config.head_dim
    merged = attended + 2 * config.num_kv_heads * config.head_dim
    hidden = config.hidden_size
    projections = (  # its kind for one row, its kind for more, columns, depth
        (LinearKind.NORM_LINEAR, LinearKind.LINEAR, merged, hidden),
        (LinearKind.LINEAR_ADD, LinearKind.SPLIT_LINEAR, hidden, attended),
        (LinearKind.NORM_GATED_LINEAR, LinearKind.GATED_LINEAR, config.intermediate_size, hidden),
        (LinearKind.LINEAR_ADD, LinearKind.SPLIT_LINEAR, hidden, config.intermediate_size),
        (LinearKind.NORM_LINEAR, LinearKind.LINEAR, config.vocab_size, hidden),
    )
    return tuple(
        LinearShape(
            kind=for_one if num_rows == 1 else for_more,
            num_rows=num_rows,
            out_features=columns,
            in_features=depth,
            dtype=dtype,
        )
        for num_rows in sorted({row_bucket(count) for count in rows})
        for for_one, for_more, columns, depth in dict.fromkeys(projections)
    )
