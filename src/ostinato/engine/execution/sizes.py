"""Which buckets and KV tiers an engine captures when the user named none. Pure arithmetic.

On a GPU a graph is cheap, so ladders are dense where padding costs something: up to 128 tokens of a mixed step share
the kernels of a few numbers of rows anyway. On a CPU simulated graphs cost compute at capture, and a wide block table
costs compute at every step; so there ladders are sparse and decode has a tier for short contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ostinato.engine.layers.linear_tiles import MAX_ROWS, ROW_BUCKETS
from ostinato.runtime import GraphKey, PlannedSizes, decode_ladder, preset_within, token_ladder

__all__ = ["decode_sizes_for", "kv_tiers_for", "max_captured_tokens", "named_sizes", "out_of_reach", "token_sizes_for"]

# The host launches a layer's kernels in some 0.15 ms (0.3 on a slow host), and an H200 multiplies by its weights for
# as long when tokens times weights are so many.
_TOKENS_TIMES_WEIGHTS: Final = 5e10
# Up to here mixed steps gain more by a graph than its launches: as a full one they have no breaks (1B: 4 to 6 %).
_MIN_CAPTURED_TOKENS: Final = 512
# cuBLAS multiplies by tiles of so many rows (H200): 64 rows more cost at least as much as a whole tile (1B in pieces:
# 704 tokens 3.06 ms, 768 tokens 2.99), a quarter of a tile less (672 tokens 2.67 ms).
_TILE_ROWS: Final = 128
_PART_TILE: Final = 32
# Of smaller models too: their graphs of more tokens would save little, and hold memory by their tokens.
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
    more = [size for size in token_ladder(end) if size > MAX_ROWS]
    # In the last octave the device is busy for nearly as long as the host, so padding costs what eager would save.
    between = [_between(lower, upper) for lower, upper in pairwise(more) if lower >= end // 2]
    largest = min(max_num_batched_tokens, end)
    return tuple(sorted({*(size for size in (*ROW_BUCKETS, *more, *between) if size < largest), largest}))


def named_sizes(sizes: tuple[int, ...] | str | None, kind: str, *, limit: int) -> tuple[int, ...] | None:
    """The sizes that a setting means: those it lists, or those of the ladder that it names, up to ``limit``.

    Args:
        kind: ``"decode"`` or ``"mixed"``.
    """
    return preset_within(sizes, kind, limit=limit) if isinstance(sizes, str) else sizes


def decode_sizes_for(device_type: str, max_num_reqs: int, num_pages: int | None = None) -> tuple[int, ...] | None:
    """Request buckets of decode; None leaves the ladder to the runtime.

    Args:
        num_pages: of the KV cache, if that is known: each decode needs one.
    """
    most = max_num_reqs if num_pages is None else min(max_num_reqs, num_pages)
    if device_type == "cpu":
        return _doubling(1, most)
    return None if most == max_num_reqs else decode_ladder(most)


def kv_tiers_for(attention: str, max_model_len: int) -> tuple[int, ...] | None:
    """Context lengths with decode graphs of their own; None where attention's cost follows the live context.

    Torch attention gathers as many pages as the block table is wide, live or not.
    """
    if attention != "torch":
        return None
    return tuple(sorted({min(256, max_model_len), max_model_len}))


def out_of_reach(keys: Sequence[GraphKey], *, num_pages: int, page_size: int) -> list[GraphKey]:
    """Those of ``keys`` that only a step could need which a KV cache of so many pages cannot hold.

    Args:
        num_pages: the null page not counted; each decode needs one.
        page_size: in tokens.
    """
    planned = PlannedSizes.of(keys)
    most_decode = _smallest_for(num_pages, planned.decode)
    most_mixed = _smallest_for(num_pages * page_size, planned.mixed)
    out = []
    for key in keys:
        size, most = (key.num_tokens, most_mixed) if key.uniform_query_len is None else (key.num_reqs or 0, most_decode)
        if size > most:
            out.append(key)
    return out


def _smallest_for(most: int, sizes: Sequence[int]) -> int:
    return min((size for size in sizes if size >= most), default=most)


def _between(lower: int, upper: int) -> int:
    middle = (lower + upper) // 2
    return lower + _PART_TILE if upper - lower == _TILE_ROWS and lower % _TILE_ROWS == 0 else middle


def _doubling(first: int, largest: int) -> tuple[int, ...]:
    sizes = []
    size = first
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)
