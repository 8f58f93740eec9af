"""Tile sizes by head size and dtype, and how far a context is split: fixed, never tuned at run time.

Everything here is a function of shapes (padded sizes), so a captured graph stays right for any live batch
that it is replayed for. Called by the launchers beside this file, which keep what they make of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

__all__ = [
    "LOG2_E",
    "MAX_DECODE_ROWS",
    "DecodePlan",
    "DecodeTiles",
    "VarlenTiles",
    "max_split_units",
    "next_power_of_2",
    "plan_decode",
    "variant_num_reqs",
    "variant_num_tokens",
    "varlen_tiles",
]

LOG2_E = 1.4426950408889634
"""Turns a factor on scores into one for `exp2`."""

MAX_DECODE_ROWS = 64
"""Rows of a query tile (query tokens times padded heads of a group) up to which the decode kernels serve."""

# Up to this many rows a smaller query tile fills the device better.
_SMALL_BATCH_ROWS = 512
# Programs to aim at for each multiprocessor when contexts are split.
_PROGRAMS_PER_SM = 2
_MAX_SPLITS = 64
# The least rows that a tensor core multiplies.
_MIN_ROWS = 16


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is >= ``n`` (n >= 1)."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class VarlenTiles:
    """Tiles of the varlen kernel."""

    block_m: int
    """Rows of a query tile: query tokens times padded heads of one group."""
    block_n: int
    """Context tokens a tile."""
    num_warps: int
    num_stages: int


@dataclass(frozen=True, kw_only=True)
class DecodeTiles:
    """Tiles of the decode kernels."""

    block_n: int
    """Context tokens a tile."""
    min_blocks: int
    """Tiles below which a context is not split further."""
    merged_at_once: int
    """Splits that the merge reads in one go."""
    num_warps: int
    num_stages: int


@dataclass(frozen=True, kw_only=True)
class DecodePlan:
    """The launch of a decode kernel, but for its tensors."""

    tiles: DecodeTiles
    num_units: int
    """Requests times KV heads."""
    num_splits: int
    """Parts that a context may be cut into."""
    group: int
    """Query heads a KV head."""
    padded_group: int
    rows: int
    """Rows of a query tile."""
    head_dim: int

    @property
    def num_parts(self) -> int:
        """Floats that splits leave for the one that merges them: of each row a peak, a total and a weighted sum."""
        rows = self.num_units * self.num_splits * self.rows if self.num_splits > 1 else 0
        return rows * (2 + self.head_dim)


def varlen_tiles(*, num_tokens: int, padded_group: int, head_dim: int, dtype: torch.dtype) -> VarlenTiles:
    """Tiles for ``num_tokens`` padded rows; ``padded_group`` is query heads a KV head, as a power of two."""
    if dtype == torch.float32:  # exact products run without tensor cores: small tiles, for registers
        block_m, block_n, num_warps, num_stages = 32, 32, 4, 1
    elif head_dim > 128:
        block_m, block_n, num_warps, num_stages = 64, 32, 4, 2
    elif num_tokens <= _SMALL_BATCH_ROWS or head_dim > 64:  # measured on an H200, prompts of 4,096
        block_m, block_n, num_warps, num_stages = 64, 64, 4, 3
    else:
        block_m, block_n, num_warps, num_stages = 128, 64, 8, 3
    return VarlenTiles(block_m=max(block_m, padded_group), block_n=block_n, num_warps=num_warps, num_stages=num_stages)


def variant_num_tokens() -> tuple[int, ...]:
    """Numbers of rows that between them select every variant of `varlen_tiles`."""
    return (1, _SMALL_BATCH_ROWS + 1)


def _decode_tiles(*, head_dim: int, dtype: torch.dtype, rows: int, fills_device: bool) -> DecodeTiles:
    at_once = max(1, 512 // head_dim)  # keeps the merged tile within registers
    if dtype == torch.float32:
        return DecodeTiles(block_n=32, min_blocks=2, merged_at_once=at_once, num_warps=4, num_stages=1)
    if rows == _MIN_ROWS and head_dim <= 128:
        # Measured on an H200, contexts of 200 to 8,000 tokens. Few units wait for memory: much of the context at once.
        # Many units hide each other's waits: single warps, which need no barrier.
        if head_dim <= 64 and not fills_device:
            return DecodeTiles(block_n=256, min_blocks=1, merged_at_once=at_once, num_warps=4, num_stages=1)
        num_stages = 4 if head_dim <= 64 else 3
        return DecodeTiles(block_n=32, min_blocks=1, merged_at_once=at_once, num_warps=1, num_stages=num_stages)
    if head_dim <= 128:
        return DecodeTiles(block_n=64, min_blocks=2, merged_at_once=at_once, num_warps=4, num_stages=3)
    return DecodeTiles(block_n=32, min_blocks=4, merged_at_once=at_once, num_warps=4, num_stages=2)


@lru_cache
def _num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":  # the interpreter
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def variant_num_reqs(num_kv_heads: int, device: torch.device) -> tuple[int, ...]:
    """Numbers of requests that between them select every variant of decode tiles."""
    return (1, max_split_units(device) // num_kv_heads + 1)


def max_split_units(device: torch.device) -> int:
    """With this many units (requests times KV heads) or more, `plan_decode` splits nothing."""
    return _PROGRAMS_PER_SM * _num_multiprocessors(device)


def plan_decode(
    *,
    num_reqs: int,
    max_context: int,
    query_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> DecodePlan:
    """Plan a decode launch for ``num_reqs`` padded requests of up to ``max_context`` tokens."""
    group = num_heads // num_kv_heads
    padded_group = next_power_of_2(group)
    rows = max(next_power_of_2(query_len * padded_group), _MIN_ROWS)
    units = num_reqs * num_kv_heads
    fills_device = units > max_split_units(device)
    tiles = _decode_tiles(head_dim=head_dim, dtype=dtype, rows=rows, fills_device=fills_device)
    wanted = -(-max_split_units(device) // units)
    useful = -(-max_context // (tiles.block_n * tiles.min_blocks))
    return DecodePlan(
        tiles=tiles,
        num_units=units,
        num_splits=max(1, min(wanted, useful, _MAX_SPLITS)),
        group=group,
        padded_group=padded_group,
        rows=rows,
        head_dim=head_dim,
    )
