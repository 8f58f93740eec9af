"""What tuning keeps, with measuring replaced; the measuring itself needs a device (benchmarks/linear_few_rows.py)."""

from __future__ import annotations

import math

import pytest
import torch

from ostinato.engine.layers import linear_tuning
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, LinearTiles
from ostinato.engine.layers.linear_tuning import LinearTiming, tune_linears, weight_bytes

CPU = torch.device("cpu")
KINDS = (LinearKind.LINEAR, LinearKind.SPLIT_LINEAR, LinearKind.GATED_LINEAR)
SHAPES = [LinearShape(kind=kind, num_rows=16, out_features=64, in_features=96, dtype="bfloat16") for kind in KINDS]
TILES = LinearTiles(block_n=4, block_k=64, num_warps=4)


@pytest.fixture
def measured(monkeypatch):
    """The shapes that were measured; gated ones do not compile, and cuBLAS wins the sum."""
    calls = []

    def measure(shape, *, device, use_pdl):
        calls.append(shape)
        fused_us = {LinearKind.GATED_LINEAR: math.inf, LinearKind.SPLIT_LINEAR: 9.0}.get(shape.kind, 2.0)
        times = {None: 5.0, TILES: fused_us}
        return [LinearTiming(shape=shape, tiles=tiles, time_us=time_us) for tiles, time_us in times.items()]

    monkeypatch.setattr(linear_tuning, "measure_shape", measure)
    return calls


def test_the_fastest_is_chosen_and_measured_once(measured, tmp_path):
    told = []
    table = tune_linears(SHAPES, device=CPU, root=tmp_path, on_shape=told.append)
    assert [table.choose(shape) for shape in SHAPES] == [TILES, None, None]
    assert measured == SHAPES and [timing.time_us for timing in told] == [2.0, 5.0, 5.0]
    again = tune_linears(SHAPES, device=CPU, root=tmp_path)
    assert again.choices == table.choices and len(measured) == len(SHAPES)


def test_only_what_is_missing_is_measured(measured, tmp_path):
    tune_linears(SHAPES[:1], device=CPU, root=tmp_path)
    table = tune_linears(SHAPES, device=CPU, root=tmp_path)
    assert measured == SHAPES and set(table.choices) == set(SHAPES)


def test_early_launches_have_choices_of_their_own(measured, tmp_path):
    for use_pdl in (False, True):
        tune_linears(SHAPES, device=CPU, root=tmp_path, use_pdl=use_pdl)
    assert measured == SHAPES * 2


def test_weight_bytes_count_both_halves():
    assert [weight_bytes(shape) for shape in SHAPES] == [64 * 96 * 2, 64 * 96 * 2, 2 * 64 * 96 * 2]
