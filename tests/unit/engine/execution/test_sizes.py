"""Ladders and KV tiers of an engine whose user named none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ostinato.engine.execution.sizes import (
    decode_sizes_for,
    kv_tiers_for,
    max_captured_tokens,
    out_of_reach,
    token_sizes_for,
)
from ostinato.runtime import GraphKey, RuntimeMode


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


@pytest.mark.parametrize(
    ("device", "num_pages", "sizes"),
    [("cpu", 5, (1, 2, 4, 5)), ("cpu", 64, (1, 2, 4, 8, 16)), ("cuda", 5, (1, 2, 4, 5)), ("cuda", 16, None)],
)
def test_no_decode_without_a_page(device: str, num_pages: int, sizes: tuple[int, ...] | None) -> None:
    assert decode_sizes_for(device, 16, num_pages) == sizes


def test_what_is_out_of_reach_of_a_cache() -> None:
    def decode(num_reqs: int) -> GraphKey:
        return GraphKey(
            runtime_mode=RuntimeMode.FULL, num_tokens=num_reqs, num_reqs=num_reqs, uniform_query_len=1, kv_tier=64
        )

    def mixed(num_tokens: int, mode: RuntimeMode = RuntimeMode.PIECEWISE) -> GraphKey:
        return GraphKey(runtime_mode=mode, num_tokens=num_tokens, num_reqs=None if mode is RuntimeMode.PIECEWISE else 4)

    full = RuntimeMode.FULL
    keys = [mixed(256), mixed(128), mixed(64), mixed(64, full), mixed(16, full), decode(16), decode(8), decode(4)]
    assert out_of_reach(keys, num_pages=5, page_size=16) == [keys[0], keys[5]], "8 and 128 hold steps of 5 and 80"
    assert out_of_reach(keys, num_pages=4, page_size=16) == [keys[0], keys[1], keys[5], keys[6]]
    assert out_of_reach(keys, num_pages=100, page_size=16) == [] == out_of_reach([], num_pages=1, page_size=16)


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


@pytest.mark.parametrize("weights", [1, 48_000_000, 49_000_000, 98_000_000, 10**9])
def test_the_last_octave_has_eight_steps(weights: int) -> None:
    token = token_sizes_for("cuda", 8192, weights)
    last = [size for size in token if size >= token[-1] // 2]
    assert len(last) == 9 and all(upper * 8 <= lower * 9 or upper - lower == 96 for lower, upper in pairwise(last))


def test_what_lies_between_whole_tiles_is_a_quarter_of_one() -> None:
    token = token_sizes_for("cuda", 8192, 60_817_408)
    assert token[token.index(512) :] == (512, 544, 640, 672, 768, 800, 896, 928, 1024)
    assert all(size % 128 == 0 for size in token_sizes_for("cuda", 8192, 1) if size > 512), "halves are whole tiles"


@pytest.mark.parametrize(("longest", "tiers"), [(100, (100,)), (256, (256,)), (300, (256, 300)), (2048, (256, 2048))])
def test_tiers_end_with_the_longest_context(longest: int, tiers: tuple[int, ...]) -> None:
    assert kv_tiers_for("torch", longest) == tiers
    assert kv_tiers_for("triton", longest) is None


@pytest.mark.parametrize(
    ("weights", "largest"), [(1, 2048), (48_000_000, 2048), (49_000_000, 1024), (98_000_000, 512), (10**9, 512)]
)
def test_larger_layers_end_the_ladder_of_mixed_steps_earlier(weights: int, largest: int) -> None:
    assert max_captured_tokens(weights) == largest
