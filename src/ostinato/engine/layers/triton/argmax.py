"""The index of each row's largest logit, in one launch. Called by `GreedyHead` on CUDA.

A row is cut into splits, so that one row fills the device too; the last program of a row to finish merges them.
Equal values: the lowest index wins, whoever is last.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher

__all__ = ["MAX_SPLITS", "launch_argmax", "scratch"]

MAX_SPLITS = 64
_BLOCK = 1024
_NUM_WARPS = 8
_PROGRAMS = 1056  # eight for each multiprocessor of a large device: so many bytes must be on their way at once


@triton.jit(do_not_specialize=["vocab", "num_splits"])
def _argmax_kernel(logits, out, peaks, places, counters, vocab, num_splits, BLOCK: tl.constexpr, SPLITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    share = tl.cdiv(tl.cdiv(vocab, BLOCK), num_splits) * BLOCK
    begin = split * share
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32) + begin + lanes
    for first in range(begin, tl.minimum(begin + share, vocab), BLOCK):
        columns = first + lanes
        values = tl.load(logits + row * vocab + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
        values = tl.where(values == values, values, float("inf"))  # a NaN spoils its row as an infinity does
        place = tl.where(values > best, columns, place)
        best = tl.maximum(values, best)
    peak = tl.max(best, 0)
    at = tl.min(tl.where(best == peak, place, 0x7FFFFFFF), 0)

    tl.store(peaks + row * SPLITS + split, peak)
    tl.store(places + row * SPLITS + split, at)
    # All threads' stores come before the release that the one counting thread does.
    tl.debug_barrier()
    arrived = tl.atomic_add(counters + row, 1, sem="acq_rel", scope="gpu")
    if arrived == num_splits - 1:
        splits = tl.arange(0, SPLITS)
        is_split = splits < num_splits
        line = row * SPLITS + splits
        others = tl.load(peaks + line, mask=is_split, other=float("-inf"), cache_modifier=".cg")
        their_places = tl.load(places + line, mask=is_split, other=0x7FFFFFFF, cache_modifier=".cg")
        top = tl.max(others, 0)
        winner = tl.min(tl.where(others == top, their_places, 0x7FFFFFFF), 0)
        is_finite = (top < float("inf")) & (top > float("-inf"))
        tl.store(out + row, tl.where(is_finite, winner, -1).to(tl.int64))
        tl.store(counters + row, 0)  # as the next launch expects it


@functools.cache
def _launcher(dtype: torch.dtype) -> Launcher:
    return Launcher(_argmax_kernel, f"argmax[{dtype}]", BLOCK=_BLOCK, SPLITS=MAX_SPLITS, num_warps=_NUM_WARPS)


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(dtype: torch.dtype, logits: torch.Size) -> Launch:
    num_rows, vocab = logits
    num_splits = max(1, min(MAX_SPLITS, _PROGRAMS // num_rows, -(-vocab // _BLOCK)))
    return _launcher(dtype).at((num_rows, num_splits, 1), vocab, num_splits)


def launch_argmax(logits: Tensor, out: Tensor, peaks: Tensor, places: Tensor, counters: Tensor) -> None:
    """Write row-wise argmax, or -1 for a row whose largest value is not finite.

    Args:
        logits: [num_rows, vocab], contiguous.
        out: [num_rows] int64.
        peaks: [>= num_rows, MAX_SPLITS] float32, scratch.
        places: [>= num_rows, MAX_SPLITS] int32, scratch.
        counters: [>= num_rows] int32, all zero, and again afterwards.
    """
    _launch(logits.dtype, logits.shape)(logits, out, peaks, places, counters)


def scratch(num_rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """``peaks``, ``places`` and ``counters`` for up to ``num_rows`` rows."""
    return (
        torch.empty((num_rows, MAX_SPLITS), dtype=torch.float32, device=device),
        torch.empty((num_rows, MAX_SPLITS), dtype=torch.int32, device=device),
        torch.zeros(num_rows, dtype=torch.int32, device=device),
    )
