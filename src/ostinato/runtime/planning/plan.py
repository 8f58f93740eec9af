"""Which keys to capture for a resolved mode: the product of buckets, query lengths and KV tiers.

Pure: sizes in, keys out, largest first, which is the order in which one pool is best filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ostinato.runtime.config import GraphConfig
from ostinato.runtime.keys import GraphKey, Mode, RuntimeMode
from ostinato.runtime.planning.ladders import decode_ladder, token_ladder

__all__ = ["largest_first", "plan_keys"]


def plan_keys(
    config: GraphConfig,
    mode: Mode,
    *,
    max_size: int,
    full_mixed_max_tokens: int = 0,
    on_drop: Callable[[GraphKey, str], None] | None = None,
) -> list[GraphKey]:
    """Keys for ``mode``, largest first, without those that no step could use.

    Args:
        config: sizes and tiers; None fields take the default ladders.
        mode: resolved, never AUTO.
        max_size: largest live size in tokens.
        full_mixed_max_tokens: resolved; see `GraphConfig`.
        on_drop: told of each key that is left out, and why.
    """
    sizes = config.sizes or token_ladder(min(max_size, config.max_captured_size or max_size))
    keys: list[GraphKey] = []
    if mode in (Mode.PIECEWISE, Mode.FULL_AND_PIECEWISE):
        keys += [GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=n) for n in sizes]
    if config.max_num_reqs is None:
        if mode in (Mode.FULL, Mode.FULL_DECODE_ONLY):
            keys += [GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n) for n in sizes]
    elif mode is not Mode.NONE and mode is not Mode.PIECEWISE:
        keys += _uniform_keys(config, config.max_num_reqs, max_size)
        if mode is Mode.FULL:
            keys += _mixed_keys(config, sizes, config.max_num_reqs)
        elif mode is Mode.FULL_AND_PIECEWISE and full_mixed_max_tokens:
            small = tuple(n for n in sizes if n <= full_mixed_max_tokens)
            keys += _mixed_keys(config, small, min(config.max_num_reqs, config.full_mixed_num_reqs))
    kept = []
    for key in keys:
        why = _why_unusable(key, config, max_size)
        if why is None:
            kept.append(key)
        elif on_drop is not None:
            on_drop(key, why)
    return largest_first(kept)


def largest_first(keys: Iterable[GraphKey]) -> list[GraphKey]:
    """``keys`` in the order in which they are captured and listed."""
    return sorted(keys, key=lambda k: (k.num_tokens, k.kv_tier or 0, k.runtime_mode is RuntimeMode.FULL), reverse=True)


def _why_unusable(key: GraphKey, config: GraphConfig, max_size: int) -> str | None:
    if key.num_tokens % config.size_multiple:
        return f"{key.num_tokens} tokens are no multiple of {config.size_multiple}"
    if key.num_tokens > max_size:
        return f"{key.num_tokens} tokens exceed the {max_size} of the largest step"
    return None


def _uniform_keys(config: GraphConfig, max_num_reqs: int, max_size: int) -> list[GraphKey]:
    return [
        GraphKey(
            runtime_mode=RuntimeMode.FULL,
            num_tokens=n * query_len,
            num_reqs=n,
            uniform_query_len=query_len,
            kv_tier=tier,
        )
        for query_len in config.uniform_query_lens
        # The default ladder ends at the most requests that a step of this query length can hold.
        for n in config.decode_sizes or decode_ladder(max(1, min(max_num_reqs, max_size // query_len)))
        for tier in config.kv_tiers or (None,)
    ]


def _mixed_keys(config: GraphConfig, sizes: tuple[int, ...], max_num_reqs: int) -> list[GraphKey]:
    # Empty request slots are cheap, padded tokens are not: every mixed key has slots for all requests it takes.
    return [
        GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n, num_reqs=min(n, max_num_reqs), kv_tier=tier)
        for n in sizes
        for tier in config.kv_tiers or (None,)
    ]
