"""The largest step that a callable is planned for. Pure arithmetic."""

from __future__ import annotations

from ostinato.errors import ConfigError
from ostinato.runtime.config import GraphConfig

__all__ = ["largest_size"]


def largest_size(config: GraphConfig, example_rows: int | None) -> int:
    """Tokens of the largest step: as configured, else the rows of the example.

    Raises:
        ConfigError: nothing tells.
    """
    largest = config.max_size or (config.sizes[-1] if config.sizes else example_rows)
    if largest is None:
        raise ConfigError("the largest size is unknown", fix="set GraphConfig(sizes=...) or max_size")
    if config.max_num_reqs is not None:
        decode = (config.decode_sizes or (config.max_num_reqs,))[-1] * config.uniform_query_lens[-1]
        largest = max(largest, decode)
    return largest
