"""Tiles by shape: every default and candidate is one that its kernel can run."""

from __future__ import annotations

import pytest

from ostinato.engine.layers.linear_tiles import (
    MAX_FEW_ROWS,
    MAX_VECTOR_ROWS,
    LinearKind,
    LinearShape,
    candidate_tiles,
    default_tiles,
    row_bucket,
)

SIZES = [(3072, 2048), (2048, 8192), (128256, 2048), (4096, 14336), (960, 576), (64, 96), (7, 48)]


def is_power_of_2(n):
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("num_rows", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kind", list(LinearKind))
@pytest.mark.parametrize(("columns", "depth"), SIZES)
def test_tiles_can_run(kind, num_rows, columns, depth):
    shape = LinearShape(kind=kind, num_rows=num_rows, out_features=columns, in_features=depth, dtype="bfloat16")
    candidates = candidate_tiles(shape)
    assert default_tiles(shape) in (candidates[0], None)
    assert default_tiles(shape) is not None or num_rows > 1, "one row is always fused"
    assert len(set(candidates)) == len(candidates)
    for tiles in candidates:
        assert is_power_of_2(tiles.block_n) and is_power_of_2(tiles.block_k) and is_power_of_2(tiles.num_warps)
        halves = 2 if kind is LinearKind.NORM_GATED_LINEAR else 1
        if not tiles.uses_tensor_cores:
            assert num_rows <= MAX_VECTOR_ROWS
            # Partial sums that a thread holds in its registers.
            assert halves * num_rows * tiles.block_n * tiles.block_k // (tiles.num_warps * 32) <= 255
        else:
            assert tiles.block_n >= 16 and tiles.block_k >= 16, "the least that tensor cores multiply"
            assert (halves * tiles.block_n + MAX_FEW_ROWS) * tiles.block_k * 2 * tiles.num_stages <= 227 * 1024


@pytest.mark.parametrize(("num_rows", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (16, 16)])
def test_row_bucket(num_rows, bucket):
    assert row_bucket(num_rows) == bucket
