"""Writing keys and values to their slots, alone or together with QK norm and rotary embedding.

Padded rows carry slot 0 and land in the null page. Called by `TritonAttention`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.triton.configs import next_power_of_2
from ostinato.engine.attention.triton.rotary import norm_and_rotate
from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher
from ostinato.engine.kvcache import LayerCache

__all__ = ["launch_rotary_write", "launch_write"]


_VARYING = ("slots", "k_stride_heads", "v_stride_heads")


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_VARYING)
def _write_kernel(
    k,
    v,
    key,
    value,
    slots,
    k_stride_heads,
    v_stride_heads,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * HEAD_DIM
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64) * WIDTH
    tl.store(key + slot + columns, tl.load(k + row * k_stride_heads + columns, mask=inside), mask=inside)
    tl.store(value + slot + columns, tl.load(v + row * v_stride_heads + columns, mask=inside), mask=inside)


@triton.jit(do_not_specialize=("slots",), do_not_specialize_on_alignment=("slots",))
def _rotary_write_kernel(
    qkv,
    rotary,
    q_out,
    k_out,
    key,
    value,
    q_norm,
    k_norm,
    slots,
    eps,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    HALF: tl.constexpr = HEAD_DIM // 2
    head = tl.arange(0, PADDED_GROUP)
    half = tl.arange(0, HALF)
    dims = tl.arange(0, HEAD_DIM)
    is_real = (head < GROUP)[:, None]
    line = qkv + row * ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    cos = tl.load(rotary + row * HEAD_DIM + half)
    sin = tl.load(rotary + row * HEAD_DIM + HALF + half)
    dtype = key.dtype.element_ty

    q_tile = ((kv_head * GROUP + head) * HEAD_DIM)[:, None] + half[None, :]
    q_low = tl.load(line + q_tile, mask=is_real, other=0.0).to(tl.float32)
    q_high = tl.load(line + q_tile + HALF, mask=is_real, other=0.0).to(tl.float32)
    q_low, q_high = norm_and_rotate(q_low, q_high, cos, sin, q_norm, eps, HEAD_DIM, HAS_NORM)
    tl.store(q_out + row * (NUM_HEADS * HEAD_DIM) + q_tile, q_low.to(dtype), mask=is_real)
    tl.store(q_out + row * (NUM_HEADS * HEAD_DIM) + q_tile + HALF, q_high.to(dtype), mask=is_real)

    k_tile = (NUM_HEADS + kv_head) * HEAD_DIM + half[None, :]
    k_low = tl.load(line + k_tile).to(tl.float32)
    k_high = tl.load(line + k_tile + HALF).to(tl.float32)
    k_low, k_high = norm_and_rotate(k_low, k_high, cos, sin, k_norm, eps, HEAD_DIM, HAS_NORM)
    slot = tl.load(slots + row).to(tl.int64) * (NUM_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
    k_line = k_out + (row * NUM_KV_HEADS + kv_head) * HEAD_DIM + half[None, :]
    tl.store(k_line, k_low.to(dtype))
    tl.store(k_line + HALF, k_high.to(dtype))
    tl.store(key + slot + half[None, :], k_low.to(dtype))
    tl.store(key + slot + HALF + half[None, :], k_high.to(dtype))
    tl.store(value + slot + dims, tl.load(line + (NUM_HEADS + NUM_KV_HEADS + kv_head) * HEAD_DIM + dims))


@functools.cache
def _write_launcher(dtype: torch.dtype, num_kv_heads: int, head_dim: int) -> Launcher:
    width = num_kv_heads * head_dim
    return Launcher(
        _write_kernel, f"write[{dtype},{num_kv_heads},{head_dim}]",
        HEAD_DIM=head_dim, WIDTH=width, BLOCK=next_power_of_2(width), num_warps=4,
    )  # fmt: skip


@functools.cache
def _rotary_write_launcher(
    dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, has_norm: bool
) -> Launcher:
    group = num_heads // num_kv_heads
    return Launcher(
        _rotary_write_kernel, f"rotary_write[{dtype},{num_heads},{num_kv_heads},{head_dim},{has_norm}]",
        GROUP=group, PADDED_GROUP=next_power_of_2(group), NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        HAS_NORM=has_norm, num_warps=1 if group * head_dim <= 512 else 4,
    )  # fmt: skip


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _rotary_write_launch(
    dtype: torch.dtype, num_tokens: int, q_out: torch.Size, cache: torch.Size, has_norm: bool, eps: float
) -> Launch:
    """Of these shapes."""
    _, _, num_kv_heads, head_dim = cache
    launcher = _rotary_write_launcher(dtype, q_out[1], num_kv_heads, head_dim, has_norm)
    return launcher.at((num_tokens, num_kv_heads, 1), eps)


def launch_write(k: Tensor, v: Tensor, cache: LayerCache, metadata: AttentionMetadata) -> None:
    """Store rows as they are; see `AttentionBackend.write_kv`."""
    _, _, num_kv_heads, head_dim = cache.key.shape
    _write_launcher(k.dtype, num_kv_heads, head_dim)(
        (k.shape[0], 1, 1),
        (k, v, cache.key, cache.value, metadata.slot_mapping),
        k.stride(0) // head_dim, v.stride(0) // head_dim,
    )  # fmt: skip


def launch_rotary_write(
    qkv: Tensor,
    rotary: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    cache: LayerCache,
    metadata: AttentionMetadata,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> None:
    """Norm and rotate queries into ``q_out``, keys into ``k_out`` and the cache; values go there as they are.

    Args:
        qkv: [>= num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], contiguous.
        rotary: [>= num_tokens, head_dim] float32.
        q_out: [>= num_tokens, num_heads, head_dim], contiguous.
        k_out: [>= num_tokens, num_kv_heads * head_dim], contiguous, in the dtype of the cache.
        metadata: only its ``num_tokens`` rows are read and written.
        q_norm, k_norm: [head_dim] weights, or None.
    """
    key = cache.key
    launch = _rotary_write_launch(qkv.dtype, metadata.num_tokens, q_out.shape, key.shape, q_norm is not None, eps)
    launch(qkv, rotary, q_out, k_out, key, cache.value, q_norm, k_norm, metadata.slot_mapping)
