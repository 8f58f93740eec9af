"""Linear layers of few rows: what one is, the tiles of its fused kernel, and tiles good without measuring.

Pure arithmetic on shapes, so that steps of one padded size take the same kernel however they run. Which of
fused kernel and cuBLAS is faster on a given device is measured by `linear_tuning`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = [
    "MAX_FEW_ROWS",
    "MAX_VECTOR_ROWS",
    "LinearKind",
    "LinearShape",
    "LinearTiles",
    "candidate_tiles",
    "default_tiles",
    "row_bucket",
]

MAX_FEW_ROWS = 16
"""Rows up to which linear layers are fused with their neighbours: what one tile of the tensor cores holds."""

MAX_VECTOR_ROWS = 4
"""Rows up to which multiplying without tensor cores may keep pace with the memory."""

# Partial sums in registers.
_MAX_SUMS_PER_THREAD = 128
# Columns from which a layer is a vocabulary's head.
_MANY_COLUMNS = 32768

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
# block_n, block_k, num_warps
_MATRIX_TILES = (
    (16, 128, 2),
    (16, 256, 2),
    (16, 256, 4),
    (16, 512, 4),
    (32, 128, 4),
    (32, 256, 4),
    (64, 64, 4),
    (64, 128, 4),
    (128, 64, 4),
)
# Of tiles on their way; lets a multiprocessor of 228 KiB hold at least one program with room for the rest.
_MAX_SHARED_BYTES = 160 * 1024


class LinearKind(StrEnum):
    """What is fused around the product."""

    NORM_LINEAR = "norm_linear"
    LINEAR_ADD = "linear_add"
    NORM_GATED_LINEAR = "norm_gated_linear"


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
    """The launch of a fused kernel."""

    block_n: int
    """Rows of the weight a program (of each half, if gated)."""
    block_k: int
    """Elements of depth at a time."""
    num_warps: int
    uses_tensor_cores: bool = False
    """Which kernel: `matrix_linear`, or `vector_linear`, which serves up to 4 rows."""
    num_stages: int = 1
    """Tiles on their way at a time; without tensor cores always two."""


def row_bucket(num_rows: int) -> int:
    """The smallest of 1, 2, 4, 8, 16 that holds ``num_rows`` (1 to 16)."""
    return 1 << (num_rows - 1).bit_length()


def default_tiles(shape: LinearShape) -> LinearTiles | None:
    """The fastest of `candidate_tiles` on an H200 for layers of 2,048 to 14,336 wide, bfloat16; None: cuBLAS."""
    depth = max(64, _power_of_2_at_least(shape.in_features))
    tiles = _one_row(shape) if shape.num_rows == 1 else _few_rows(shape)
    return None if tiles is None else replace(tiles, block_k=min(tiles.block_k, depth))


def _one_row(shape: LinearShape) -> LinearTiles:
    is_gated = shape.kind is LinearKind.NORM_GATED_LINEAR
    if shape.in_features <= 2048:
        return LinearTiles(block_n=2 if is_gated else 4, block_k=2048, num_warps=4)
    if is_gated:
        return LinearTiles(block_n=1, block_k=4096, num_warps=4)
    if shape.kind is LinearKind.LINEAR_ADD:
        return LinearTiles(block_n=2, block_k=1024 if shape.in_features <= 4096 else 2048, num_warps=4)
    if shape.out_features >= _MANY_COLUMNS:
        return LinearTiles(block_n=8, block_k=2048, num_warps=8)
    return LinearTiles(block_n=4, block_k=1024, num_warps=2)


def _few_rows(shape: LinearShape) -> LinearTiles | None:
    is_wide = shape.out_features >= _MANY_COLUMNS
    if shape.kind is LinearKind.NORM_GATED_LINEAR:
        return _matrix(64, 128, 3) if shape.in_features <= 2048 else None
    if shape.kind is LinearKind.NORM_LINEAR and is_wide:
        return _matrix(128, 64, 5) if shape.num_rows == 2 else _matrix(64, 128, 4)
    if shape.kind is LinearKind.LINEAR_ADD and shape.num_rows <= MAX_VECTOR_ROWS and shape.in_features <= 2048:
        block_k = 1024 if shape.num_rows == 2 else 2048
        return LinearTiles(block_n=2, block_k=block_k, num_warps=4)
    if shape.num_rows == 2:
        return LinearTiles(block_n=8, block_k=1024, num_warps=4)
    return None


def _matrix(block_n: int, block_k: int, num_stages: int) -> LinearTiles:
    return LinearTiles(block_n=block_n, block_k=block_k, num_warps=4, uses_tensor_cores=True, num_stages=num_stages)


def candidate_tiles(shape: LinearShape) -> tuple[LinearTiles, ...]:
    """What `tune` measures for ``shape``, besides cuBLAS; the default comes first if it is none."""
    halves = 2 if shape.kind is LinearKind.NORM_GATED_LINEAR else 1
    tiles = []
    if shape.num_rows <= MAX_VECTOR_ROWS:
        tiles += [
            LinearTiles(block_n=n, block_k=k, num_warps=w)
            for n, k, w in _VECTOR_TILES
            if halves * n * k * shape.num_rows <= _MAX_SUMS_PER_THREAD * 32 * w
        ]
    if shape.num_rows > 1:
        tiles += [
            LinearTiles(block_n=n, block_k=k, num_warps=w, uses_tensor_cores=True, num_stages=stages)
            for n, k, w in _MATRIX_TILES
            for stages in (3, 5)
            if _shared_bytes(shape, n, k) * stages <= _MAX_SHARED_BYTES
        ]
    depth = max(64, _power_of_2_at_least(shape.in_features))
    fitting = [tile for tile in tiles if tile.block_k <= depth]
    default = default_tiles(shape)
    return tuple(dict.fromkeys(fitting if default is None else (default, *fitting)))


def _shared_bytes(shape: LinearShape, block_n: int, block_k: int) -> int:
    """Of one stage: tiles of the weight and of the input."""
    halves = 2 if shape.kind is LinearKind.NORM_GATED_LINEAR else 1
    return (halves * block_n + MAX_FEW_ROWS) * block_k * 2


def _power_of_2_at_least(n: int) -> int:
    return 1 << (n - 1).bit_length()
