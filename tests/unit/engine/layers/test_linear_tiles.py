"""Tiles by shape: every default and candidate is one that its kernel can run."""

from __future__ import annotations

import pytest

from ostinato.engine.layers.linear_tiles import (
    MAX_ROWS,
    LinearKind,
    LinearShape,
    candidate_tiles,
    default_tiles,
    row_bucket,
    shared_bytes,
)

SIZES = [(3072, 2048), (2048, 8192), (128256, 2048), (4096, 14336), (960, 576), (64, 96), (7, 48)]


def is_power_of_2(n):
    return n > 0 and n & (n - 1) == 0


KINDS_AND_ROWS = [
    (kind, num_rows) for kind in LinearKind for num_rows in ([1] if kind.serves_one_row else [16, 32, 64, MAX_ROWS])
]


@pytest.mark.parametrize(("kind", "num_rows"), KINDS_AND_ROWS)
@pytest.mark.parametrize(("columns", "depth"), SIZES)
def test_tiles_can_run(kind, num_rows, columns, depth):
    shape = LinearShape(kind=kind, num_rows=num_rows, out_features=columns, in_features=depth, dtype="bfloat16")
    candidates = candidate_tiles(shape)
    assert default_tiles(shape) in (candidates[0], None)
    assert default_tiles(shape) is not None or kind is LinearKind.LINEAR, "only plain layers may be left to cuBLAS"
    assert len(set(candidates)) == len(candidates)
    for tiles in candidates:
        assert is_power_of_2(tiles.block_n) and is_power_of_2(tiles.block_k) and is_power_of_2(tiles.num_warps)
        assert tiles.num_splits == 1 or kind is LinearKind.SPLIT_LINEAR
        if kind.serves_one_row:  # partial sums that a thread holds in its registers
            assert (2 if kind.is_gated else 1) * tiles.block_n * tiles.block_k // (tiles.num_warps * 32) <= 255
        else:
            assert tiles.block_n >= 16 and tiles.block_k >= 16, "the least that tensor cores multiply"
            assert shared_bytes(shape, tiles) <= 227 * 1024
            assert (tiles.num_splits - 1) * tiles.block_k < max(depth, 64), "no part is empty"


def shape_of(kind, columns, depth, num_rows=32):
    return LinearShape(kind=kind, num_rows=num_rows, out_features=columns, in_features=depth, dtype="bfloat16")


@pytest.mark.parametrize(("columns", "depth", "splits"), [(2048, 2048, 4), (2048, 8192, 4), (4096, 14336, 2)])
def test_the_depth_is_split_until_every_multiprocessor_has_a_program(columns, depth, splits):
    assert default_tiles(shape_of(LinearKind.SPLIT_LINEAR, columns, depth)).num_splits == splits


def test_a_wide_layer_is_not_split():
    assert default_tiles(shape_of(LinearKind.SPLIT_LINEAR, 16384, 2048)).num_splits == 1


def test_a_plain_layer_of_few_columns_is_left_to_cublas():
    assert default_tiles(shape_of(LinearKind.LINEAR, 3072, 2048)) is None
    assert default_tiles(shape_of(LinearKind.LINEAR, 6144, 4096)) is not None


@pytest.mark.parametrize(
    ("num_rows", "bucket"), [(1, 1), (2, 16), (16, 16), (17, 32), (29, 32), (33, 64), (65, 128), (128, 128)]
)
def test_row_bucket(num_rows, bucket):
    assert row_bucket(num_rows) == bucket
