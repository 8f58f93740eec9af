"""Linear layers of up to 128 rows: what one is, the tiles of its kernel, and tiles good without measuring.

Pure arithmetic on shapes, so that steps of one padded size take the same kernel however they run. Which of
kernel and cuBLAS is faster on a given device is measured by `linear_tuning`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = [
    "MAX_ROWS",
    "ROW_BUCKETS",
    "LinearKind",
    "LinearShape",
    "LinearTiles",
    "candidate_tiles",
    "default_tiles",
    "row_bucket",
    "shared_bytes",
]

MAX_ROWS = 128
"""Rows up to which a step's time is that of reading weights, so that it pays to stream them by our own kernels."""

ROW_BUCKETS = (1, 16, 32, 64, 128)
"""Numbers of rows that kernels are compiled for, see `row_bucket`. Tensor cores multiply 16 at least."""

# Partial sums in registers.
_MAX_SUMS_PER_THREAD = 128
# Columns from which a layer is a vocabulary's head.
_MANY_COLUMNS = 32768
# Programs that an H200, of 132 multiprocessors, needs to be busy; another device is used less well, not wrongly.
_MIN_PROGRAMS = 120
_MAX_PROGRAMS = 300
# Of a multiprocessor of 228 KiB, less what the system takes.
_MAX_SHARED_BYTES = 227 * 1024

# block_n, block_k, num_warps; those with one warp reduce without shared memory.
_VECTOR_TILES = (
    (1, 1024, 1),
    (2, 1024, 1),
    (1, 2048, 2),
    (2, 2048, 2),
    (4, 1024, 2),
    (1, 4096, 4),
    (2, 1024, 4),
    (2, 2048, 4),
    (4, 2048, 4),
    (8, 1024, 4),
    (2, 4096, 8),
    (4, 2048, 8),
    (8, 2048, 8),
)
# block_n, block_k, num_stages, num_warps
_MATRIX_TILES = (
    (64, 64, 4, 4),
    (64, 64, 8, 4),
    (64, 64, 6, 8),
    (64, 128, 3, 4),
    (64, 128, 5, 4),
    (128, 64, 4, 4),
    (128, 64, 4, 8),
    (128, 128, 3, 8),
)


class LinearKind(StrEnum):
    """What a kernel does around the product. The first three serve one row, the others 2 to 128."""

    NORM_LINEAR = "norm_linear"
    LINEAR_ADD = "linear_add"
    NORM_GATED_LINEAR = "norm_gated_linear"
    LINEAR = "linear"
    GATED_LINEAR = "gated_linear"
    SPLIT_LINEAR = "split_linear"

    __hash__ = str.__hash__  # an enum's own is Python, and each op of each layer looks itself up by its kind

    @property
    def is_gated(self) -> bool:
        """Whether the weight has two halves."""
        return self in (LinearKind.NORM_GATED_LINEAR, LinearKind.GATED_LINEAR)

    @property
    def serves_one_row(self) -> bool:
        """Whether it is one of the kinds for one row."""
        return self in (LinearKind.NORM_LINEAR, LinearKind.LINEAR_ADD, LinearKind.NORM_GATED_LINEAR)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearShape:
    """One linear layer at one number of rows."""

    kind: LinearKind
    num_rows: int
    """A bucket of `row_bucket`."""
    out_features: int
    """Columns of the result (half the weight's rows, if gated)."""
    in_features: int
    dtype: str
    """As torch prints it, without ``torch.``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearTiles:
    """The launch of a kernel."""

    block_n: int
    """Rows of the weight a program (of each half, if gated)."""
    block_k: int
    """Elements of depth at a time."""
    num_warps: int
    num_stages: int = 1
    """Tiles on their way at a time; for one row always two."""
    num_splits: int = 1
    """Parts of the depth, each summed by programs of its own; more than 1 for `LinearKind.SPLIT_LINEAR` alone."""
    is_early: bool = True
    """Whether it is launched before the kernel ahead of it has ended (`programmatic_launch`)."""


def row_bucket(num_rows: int) -> int:
    """The smallest of `ROW_BUCKETS` that holds ``num_rows`` (1 to 128)."""
    return next(bucket for bucket in ROW_BUCKETS if bucket >= num_rows)


def default_tiles(shape: LinearShape) -> LinearTiles | None:
    """The fastest of `candidate_tiles` on an H200 for layers of 2,048 to 14,336 wide, bfloat16; None: cuBLAS."""
    if shape.kind.serves_one_row:
        tiles: LinearTiles | None = _one_row(shape)
    elif shape.kind is LinearKind.SPLIT_LINEAR:
        tiles = _split(shape)
    elif shape.kind is LinearKind.GATED_LINEAR:
        tiles = _gated(shape)
    else:
        tiles = _plain(shape)
    return None if tiles is None else replace(tiles, block_k=min(tiles.block_k, _depth(shape)))


def _one_row(shape: LinearShape) -> LinearTiles:
    is_gated = shape.kind.is_gated
    if shape.in_features <= 2048:
        return LinearTiles(block_n=2 if is_gated else 4, block_k=2048, num_warps=4)
    if is_gated:
        return LinearTiles(block_n=1, block_k=4096, num_warps=4)
    if shape.kind is LinearKind.LINEAR_ADD:
        return LinearTiles(block_n=2, block_k=1024 if shape.in_features <= 4096 else 2048, num_warps=4)
    if shape.out_features >= _MANY_COLUMNS:
        return LinearTiles(block_n=8, block_k=2048, num_warps=8)
    return LinearTiles(block_n=4, block_k=1024, num_warps=2)


def _split(shape: LinearShape) -> LinearTiles:
    tiles = _deep(shape)
    splits = 1
    while splits * _num_tiles(shape, tiles) < _MIN_PROGRAMS and 2 * splits <= _num_turns(shape, tiles) // 2:
        splits *= 2
    return replace(tiles, num_splits=splits)


def _gated(shape: LinearShape) -> LinearTiles:
    tiles = _deep(shape)
    if _num_tiles(shape, tiles) <= _MIN_PROGRAMS + 16:  # one program for each multiprocessor
        return tiles
    # Wide tiles leave no room for the kernel behind.
    return replace(_wide(shape), is_early=False)


def _plain(shape: LinearShape) -> LinearTiles | None:
    if shape.num_rows == MAX_ROWS:
        return None
    if shape.out_features >= _MANY_COLUMNS:
        return replace(_wide(shape), is_early=False)
    tiles = _deep(shape)
    return tiles if 4 * _num_tiles(shape, tiles) >= 3 * _MIN_PROGRAMS else None


def _deep(shape: LinearShape) -> LinearTiles:
    if shape.num_rows <= 32:
        return _matrix(64, 128, 5, 4)
    return _matrix(64, 64, 8, 4) if shape.num_rows <= 64 else _matrix(64, 64, 6, 8)


def _wide(shape: LinearShape) -> LinearTiles:
    if shape.num_rows <= 32:
        return _matrix(128, 128, 3, 8)
    return _matrix(128, 64, 4, 4 if shape.num_rows <= 64 else 8)


def _matrix(block_n: int, block_k: int, num_stages: int, num_warps: int) -> LinearTiles:
    return LinearTiles(block_n=block_n, block_k=block_k, num_warps=num_warps, num_stages=num_stages)


def candidate_tiles(shape: LinearShape) -> tuple[LinearTiles, ...]:
    """What `linear_tuning` measures for ``shape``, besides cuBLAS; the default comes first if it is none."""
    tiles = _vector_candidates(shape) if shape.kind.serves_one_row else _matrix_candidates(shape)
    fitting = [tile for tile in tiles if tile.block_k <= _depth(shape)]
    default = default_tiles(shape)
    return tuple(dict.fromkeys(fitting if default is None else (default, *fitting)))


def _vector_candidates(shape: LinearShape) -> list[LinearTiles]:
    halves = 2 if shape.kind.is_gated else 1
    return [
        LinearTiles(block_n=n, block_k=k, num_warps=w)
        for n, k, w in _VECTOR_TILES
        if halves * n * k <= _MAX_SUMS_PER_THREAD * 32 * w
    ]


def _matrix_candidates(shape: LinearShape) -> list[LinearTiles]:
    found = []
    for tiles in (_matrix(*numbers) for numbers in _MATRIX_TILES):
        if shared_bytes(shape, tiles) > _MAX_SHARED_BYTES:
            continue
        for splits in (1, 2, 4, 8, 16) if shape.kind is LinearKind.SPLIT_LINEAR else (1,):
            is_busy = _MIN_PROGRAMS <= splits * _num_tiles(shape, tiles) <= _MAX_PROGRAMS
            if splits == 1 or (is_busy and splits <= _num_turns(shape, tiles)):
                found += [replace(tiles, num_splits=splits, is_early=is_early) for is_early in (True, False)]
    return found


def shared_bytes(shape: LinearShape, tiles: LinearTiles) -> int:
    """Shared memory of a program: tiles of the weight and of the input on their way. None for one row."""
    if shape.kind.serves_one_row:
        return 0
    rows = tiles.block_n * (2 if shape.kind.is_gated else 1) + shape.num_rows
    return rows * tiles.block_k * 2 * tiles.num_stages


def _num_tiles(shape: LinearShape, tiles: LinearTiles) -> int:
    return -(-shape.out_features // tiles.block_n)


def _num_turns(shape: LinearShape, tiles: LinearTiles) -> int:
    return -(-shape.in_features // tiles.block_k)


def _depth(shape: LinearShape) -> int:
    return max(64, _power_of_2_at_least(shape.in_features))


def _power_of_2_at_least(n: int) -> int:
    return 1 << (n - 1).bit_length()
