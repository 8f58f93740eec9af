"""Bridges: one address for a position, a prefix for smaller keys."""

import pytest
import torch

from ostinato.runtime.buffers import BridgePool


def test_a_smaller_key_gets_a_prefix():
    pool = BridgePool()
    large = pool.take(0, torch.empty(8, 4))
    small = pool.take(0, torch.empty(3, 4))
    assert small.data_ptr() == large.data_ptr()
    assert pool.take(1, torch.empty(3, 4)).data_ptr() != large.data_ptr()
    assert pool.num_bytes == (32 + 12) * 4


def test_a_larger_one_replaces_it_and_leaves_the_old_intact():
    pool = BridgePool()
    small = pool.take(0, torch.empty(2)).fill_(1.0)
    large = pool.take(0, torch.empty(8)).fill_(2.0)
    assert small.data_ptr() != large.data_ptr()
    assert small.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "like",
    [
        torch.empty(2, 3, dtype=torch.bfloat16),
        torch.empty(5, dtype=torch.bool),
        torch.empty((), dtype=torch.float64),
        torch.empty(0, 4),
        torch.empty(4, 6).t(),
    ],
    ids=["bf16", "bool", "scalar", "empty", "transposed"],
)
def test_shape_and_dtype_follow(like):
    bridge = BridgePool().take(0, like)
    assert (bridge.shape, bridge.dtype) == (like.shape, like.dtype)
    assert bridge.is_contiguous()
