"""Ladders and KV tiers of an engine whose user named none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ostinato.engine.execution.sizes import decode_sizes_for, kv_tiers_for, max_captured_tokens, token_sizes_for


@pytest.mark.parametrize(
    ("largest", "decode", "token"),
    [
        (1, (1,), (1,)),
        (2, (1, 2), (2,)),
        (6, (1, 2, 4, 6), (6,)),
        (16, (1, 2, 4, 8, 16), (16,)),
        (100, (1, 2, 4, 8, 16, 32, 64, 100), (16, 32, 64, 100)),
    ],
)
def test_a_cpu_doubles_up_to_the_peak(largest: int, decode: tuple[int, ...], token: tuple[int, ...]) -> None:
    assert decode_sizes_for("cpu", largest) == decode
    assert token_sizes_for("cpu", largest, 1) == token


def test_a_gpu_leaves_decode_to_the_runtime() -> None:
    assert decode_sizes_for("cuda", 64) is None


@pytest.mark.parametrize(
    ("largest", "weights", "token"),
    [
        (64, 1, (1, 16, 32, 64)),
        (100, 1, (1, 16, 32, 64, 100)),
        (300, 1, (1, 16, 32, 64, 128, 160, 192, 224, 256, 300)),
        (8192, 10**9, (1, 16, 32, 64, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 480, 512)),
        (400, 10**9, (1, 16, 32, 64, 128, 160, 192, 224, 256, 288, 320, 352, 384, 400)),
        (7, 1, (1, 7)),
    ],
)
def test_few_tokens_of_a_mixed_step_share_a_graph_as_they_share_kernels(
    largest: int, weights: int, token: tuple[int, ...]
) -> None:
    assert token_sizes_for("cuda", largest, weights) == token


@pytest.mark.parametrize("weights", [1, 49_000_000, 98_000_000, 10**9])
def test_the_last_octave_pads_by_an_eighth_at_most(weights: int) -> None:
    token = token_sizes_for("cuda", 8192, weights)
    last = [size for size in token if size >= token[-1] // 2]
    assert len(last) == 9 and all(upper * 8 <= lower * 9 for lower, upper in pairwise(last))


@pytest.mark.parametrize(("longest", "tiers"), [(100, (100,)), (256, (256,)), (300, (256, 300)), (2048, (256, 2048))])
def test_tiers_end_with_the_longest_context(longest: int, tiers: tuple[int, ...]) -> None:
    assert kv_tiers_for("torch", longest) == tiers
    assert kv_tiers_for("triton", longest) is None


@pytest.mark.parametrize(("weights", "largest"), [(1, 2048), (49_000_000, 2048), (98_000_000, 1024), (10**9, 512)])
def test_larger_layers_end_the_ladder_of_mixed_steps_earlier(weights: int, largest: int) -> None:
    assert max_captured_tokens(weights) == largest
