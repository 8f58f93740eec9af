"""The Triton kernels' logic against dense attention; `test_triton_kernels.py` runs this file interpreted."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
import torch

from ostinato.engine.attention import AttentionShape
from ostinato.engine.attention.triton import TritonAttention, configs
from ostinato.engine.layers import RopeConfig, RotaryTable
from ostinato.engine.layers.mlp import silu_mul
from ostinato.engine.layers.rms_norm import rms_norm
from ostinato.engine.layers.rotary import rotate
from ostinato.engine.layers.triton.rms_norm import launch_rms_norm
from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_triton_kernels.py instead"


def attend(batch, backend=None):
    backend = backend or TritonAttention()
    out = torch.full(batch.q.shape, float("nan"), dtype=batch.q.dtype)
    backend.write_kv(batch.k, batch.v, batch.cache, batch.metadata)
    backend.attend(batch.q, out, batch.cache, batch.metadata, batch.scale)
    return out


def fused(batch, *, has_norm, backend=None):
    """(out, expected) of the fused path at positions 0, 1, ... of each request's end."""
    head_dim = batch.q.shape[-1]
    positions = []
    for length, (old, _) in zip(batch.query_lens, batch.histories, strict=True):
        positions += range(old.shape[0], old.shape[0] + length)
    positions += [0] * (batch.q.shape[0] - len(positions))
    rotary = RotaryTable(RopeConfig(), head_dim, 512)(torch.tensor(positions))
    q_norm, k_norm = (torch.rand(head_dim).to(batch.q.dtype) + 0.5 for _ in range(2)) if has_norm else (None, None)
    q, k = batch.q, batch.k
    if has_norm:
        q, k = rms_norm(q, q_norm, 1e-6), rms_norm(k, k_norm, 1e-6)
    expected = batch.expected(q=rotate(q, rotary), k=rotate(k, rotary))
    qkv = torch.cat((batch.q, batch.k, batch.v), dim=1).flatten(1)
    out = torch.full(batch.q.shape, float("nan"), dtype=batch.q.dtype)
    backend = backend or TritonAttention()
    backend.rotary_attend(qkv, rotary, out, batch.cache, batch.metadata, batch.scale, q_norm, k_norm, 1e-6)
    live = sum(batch.query_lens)
    rotated = rotate(k, rotary)[:live].split(batch.query_lens)
    for stored, new in zip(batch.stored(batch.cache.key), rotated, strict=True):
        torch.testing.assert_close(stored[-new.shape[0] :], new, rtol=1e-5, atol=1e-5)
    for stored, new in zip(batch.stored(batch.cache.value), batch.v[:live].split(batch.query_lens), strict=True):
        assert torch.equal(stored[-new.shape[0] :], new)
    return out, expected


def close(out, expected):
    tolerance = 1e-5 if out.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


MIXED = [([6], [6]), ([5, 1, 3], [5, 70, 41]), ([40, 1], [40, 1]), ([7], [100]), ([1, 33, 17], [64, 65, 32])]


@pytest.mark.parametrize("lens", MIXED)
@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
def test_varlen(make_batch, lens, heads):
    batch = make_batch(*lens, heads=heads, in_graph=True)
    close(attend(batch), batch.expected())


@pytest.mark.parametrize(("padded_reqs", "padded_rows"), [(0, 5), (2, 0), (3, 40)])
def test_varlen_zeroes_padded_rows(make_batch, padded_reqs, padded_rows):
    batch = make_batch([9, 1, 2], [9, 12, 30], padded_reqs=padded_reqs, padded_rows=padded_rows, in_graph=True)
    close(attend(batch), batch.expected())


@pytest.mark.parametrize("query_len", [1, 2, 5])
@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (2, 2)])
def test_decode(make_batch, query_len, heads):
    batch = make_batch([query_len] * 3, [5, 64, 150], heads=heads, uniform=query_len, in_graph=True)
    close(attend(batch), batch.expected())


@pytest.mark.parametrize("query_len", [1, 3])
def test_decode_splits_merge_and_leave_their_counters_at_zero(make_batch, query_len):
    batch = make_batch(
        [query_len] * 2, [260, 150], uniform=query_len, padded_reqs=1, padded_rows=query_len, in_graph=True
    )
    backend = TritonAttention()
    plan = configs.plan_decode(
        num_reqs=3,
        max_context=batch.metadata.block_tables.shape[1] * 4,
        query_len=query_len,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert plan.num_splits > 1
    expected = batch.expected()
    for _ in range(2):  # a counter left over would break the second launch
        close(attend(batch, backend), expected)
    ((_, counters),) = backend._workspace._kept.values()
    assert not counters.any()


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("contexts", [[260, 150], [20, 7]])
def test_splits_keep_to_their_parts_and_what_is_not_split_needs_none(monkeypatch, make_batch, contexts, is_fused):
    batch = make_batch([1] * 2, contexts, uniform=1, in_graph=True)
    backend, given = TritonAttention(), []

    def reserve(num_parts, device):
        parts = torch.full((num_parts + 64,), 7.5)
        given.append((num_parts, parts))
        return parts, torch.zeros(64, dtype=torch.int32)

    monkeypatch.setattr(backend._workspace, "reserve", reserve)
    if is_fused:
        close(*fused(batch, has_norm=False, backend=backend))
    else:
        close(attend(batch, backend), batch.expected())
    ((num_parts, parts),) = given
    assert (num_parts > 0) == (contexts[0] > 64) and (parts[num_parts:] == 7.5).all()
    assert num_parts == 0 or (parts[:num_parts] != 7.5).any()


def test_uniform_batches_too_long_for_decode_tiles_take_the_varlen_kernel(make_batch):
    query_len = configs.MAX_DECODE_ROWS // 2 + 1
    batch = make_batch([query_len], [50], heads=(4, 2), uniform=query_len, in_graph=True)
    close(attend(batch), batch.expected())


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
def test_fused_decode(make_batch, heads, has_norm):
    batch = make_batch([1] * 4, [1, 2, 65, 150], heads=heads, uniform=1, in_graph=True)
    close(*fused(batch, has_norm=has_norm))


def test_fused_decode_with_splits_and_padding(make_batch):
    batch = make_batch([1] * 2, [260, 150], uniform=1, padded_reqs=2, padded_rows=2, in_graph=True)
    before = batch.cache.key.clone()
    backend = TritonAttention()
    out, expected = fused(batch, has_norm=False, backend=backend)
    close(out, expected)
    ((_, counters),) = backend._workspace._kept.values()
    assert not counters.any()
    changed = (before != batch.cache.key).flatten(2).any(-1) & ~(before.isnan() & batch.cache.key.isnan()).flatten(
        2
    ).all(-1)
    written = set(changed.flatten().nonzero().flatten().tolist())
    assert written <= set(batch.metadata.slot_mapping.tolist()), "padding wrote to a live slot"


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(
    ("lens", "uniform", "padded"),
    [
        (([9, 1], [9, 40]), None, 3),
        (([2, 2], [20, 71]), 2, 0),
        (([1, 1], [1, 9]), None, 0),
        (([90, 70], [90, 201]), None, 0),  # whole tiles of new keys, and of earlier ones with a rest
        (([3, 66], [67, 130]), None, 5),
    ],
)
def test_fused_mixed(make_batch, lens, uniform, padded, has_norm):
    batch = make_batch(*lens, heads=(3, 1), uniform=uniform, padded_reqs=1 if padded else 0, padded_rows=padded)
    close(*fused(batch, has_norm=has_norm))


@pytest.mark.parametrize(
    ("lens", "uniform"), [(([9, 1], [20, 40]), None), (([1, 1], [20, 40]), 1), (([2, 2], [20, 40]), 2)]
)
def test_fused_in_a_break_takes_the_live_rows_alone(make_batch, lens, uniform):
    """A piecewise step's tensors have the rows of its bucket, and its metadata the number of live ones."""
    batch = make_batch(*lens, uniform=uniform, padded_rows=40)
    live = sum(lens[0])
    batch.metadata.num_tokens = live
    batch.metadata.slot_mapping[live:] = int(batch.metadata.block_tables[0, 0]) * 4  # a row that wrote would spoil it
    out, expected = fused(batch, has_norm=False)
    close(out, expected)
    assert not out[live:].any()


@pytest.mark.parametrize("dtype", [torch.float16])  # the interpreter multiplies no bfloat16; tests/gpu does
@pytest.mark.parametrize("head_dim", [64, 128])
def test_half_precision(make_batch, dtype, head_dim):
    decode = make_batch([1] * 2, [5, 150], uniform=1, dtype=dtype, head_dim=head_dim)
    close(attend(decode), decode.expected())
    mixed = make_batch([20, 1], [90, 70], dtype=dtype, head_dim=head_dim)
    close(attend(mixed), mixed.expected())


def test_warm_up_runs_every_kernel(make_batch):
    shape = AttentionShape(
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        page_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
        has_qk_norm=True,
        uniform_query_lens=(1, 2),
    )
    with patch.object(configs, "_SMALL_BATCH_ROWS", 3):
        TritonAttention().warm_up(shape)


@pytest.mark.parametrize("size", [64, 96])
def test_rms_norm(size):
    x, residual, weight = torch.randn(5, size), torch.randn(5, size), torch.rand(size)
    torch.testing.assert_close(launch_rms_norm(x, None, weight, 1e-5), rms_norm(x, weight, 1e-5))
    total = x + residual
    normed = launch_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(normed, rms_norm(total, weight, 1e-5))
    assert normed.data_ptr() == x.data_ptr(), "nothing is allocated for what can lie where the addend was"
    assert torch.equal(residual, total)


@pytest.mark.parametrize("size", [48, 1536])
def test_silu_mul(size):
    gate_up = torch.randn(3, 2 * size)
    torch.testing.assert_close(launch_silu_mul(gate_up), silu_mul(gate_up))


@pytest.mark.parametrize("size", [48, 1536])
def test_silu_mul_in_place_is_the_same_over_the_gates_half(size):
    gate_up = torch.randn(3, 2 * size)
    expected, up = launch_silu_mul(gate_up), gate_up[:, size:].clone()
    out = launch_silu_mul(gate_up, is_in_place=True)
    assert torch.equal(out, expected)
    assert out.data_ptr() == gate_up.data_ptr() and out.stride() == (2 * size, 1)
    assert torch.equal(gate_up[:, size:], up), "the other half stays"
