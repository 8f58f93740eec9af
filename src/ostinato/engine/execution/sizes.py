"""Which buckets and KV tiers an engine captures when the user named none. Pure arithmetic.

On a GPU a graph is cheap, so ladders are dense where padding costs something: up to 128 tokens of a mixed step share
the kernels of a few numbers of rows anyway. On a CPU simulated graphs cost compute at capture, and a wide block table
costs compute at every step; so there ladders are sparse and decode has a tier for short contexts.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from ostinato.engine.layers.linear_tiles import MAX_ROWS, ROW_BUCKETS
from ostinato.runtime import token_ladder

__all__ = ["decode_sizes_for", "kv_tiers_for", "max_captured_tokens", "token_sizes_for"]

# An H200 multiplies by a layer's weights for as long as the host launches its kernels, some 0.3 ms, when tokens times
# weights are so many.
_TOKENS_TIMES_WEIGHTS: Final = 1e11
# Mixed steps up to here may be full graphs, which save more than launches.
_MIN_CAPTURED_TOKENS: Final = 512
# On an H200 a step of 4,096 tokens of a 1B model gains 4 % by its graph, for which the pool would hold 0.3 GiB more.
_MAX_CAPTURED_TOKENS: Final = 2048


def max_captured_tokens(layer_weights: int) -> int:
    """Where the default ladder of mixed steps ends, for layers of so many weights.

    Longer steps keep the device busy whoever launches their kernels: a graph saves nothing, and its padding costs.
    """
    size = _MIN_CAPTURED_TOKENS
    while size < _MAX_CAPTURED_TOKENS and size * layer_weights < _TOKENS_TIMES_WEIGHTS:
        size *= 2
    return size


def token_sizes_for(device_type: str, max_num_batched_tokens: int, layer_weights: int) -> tuple[int, ...]:
    """Token buckets of mixed steps; on a GPU up to `max_captured_tokens`."""
    if device_type == "cpu":
        return _doubling(16, max_num_batched_tokens)
    end = max_captured_tokens(layer_weights)
    few = [size for size in ROW_BUCKETS if size <= MAX_ROWS]
    more = [size for size in token_ladder(end) if size > MAX_ROWS]
    # In the last octave the device is busy for nearly as long as the host, so padding costs what eager would save.
    between = [(lower + upper) // 2 for lower, upper in pairwise(more) if lower >= end // 2]
    largest = min(max_num_batched_tokens, end)
    return tuple(sorted({*(size for size in (*few, *more, *between) if size < largest), largest}))


def decode_sizes_for(device_type: str, max_num_reqs: int) -> tuple[int, ...] | None:
    """Request buckets of decode; None leaves the ladder to the runtime."""
    return _doubling(1, max_num_reqs) if device_type == "cpu" else None


def kv_tiers_for(attention: str, max_model_len: int) -> tuple[int, ...] | None:
    """Context lengths with decode graphs of their own; None where attention's cost follows the live context.

    Torch attention gathers as many pages as the block table is wide, live or not.
    """
    if attention != "torch":
        return None
    return tuple(sorted({min(256, max_model_len), max_model_len}))


def _doubling(first: int, largest: int) -> tuple[int, ...]:
    sizes = []
    size = first
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)
