"""What the decode kernels share: folding a paged context into a running softmax, and merging parts of one.

Scores are kept in units of log2, so that `exp2` serves. A query tile comes as two halves along the head,
because that is how a rotary embedding leaves it.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["fold_context", "merge_splits"]


@triton.jit
def fold_context(
    q_low,
    q_high,
    peak,
    total,
    acc,
    key,
    value,
    pages,
    kv_head,
    begin,
    end,
    visible,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Fold positions [begin, end) in.

    q_low, q_high: [M, HEAD_DIM / 2]; peak, total: [M] float32; acc: [M, HEAD_DIM] float32; pages: pointer to
    the request's row of the block table; visible: [M], row m sees positions < visible[m].
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    columns = tl.arange(0, BLOCK_N)
    half = tl.arange(0, HALF)
    dims = tl.arange(0, HEAD_DIM)
    for first in range(begin, end, BLOCK_N):
        positions = first + columns
        live = positions < end
        page = tl.load(pages + positions // PAGE_SIZE, mask=live, other=0).to(tl.int64)
        base = (page * PAGE_SIZE + positions % PAGE_SIZE) * (NUM_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        k_pointers = key + base[:, None] + half[None, :]
        k_low = tl.load(k_pointers, mask=live[:, None], other=0.0)
        k_high = tl.load(k_pointers + HALF, mask=live[:, None], other=0.0)
        v = tl.load(value + base[:, None] + dims[None, :], mask=live[:, None], other=0.0)

        scores = tl.dot(q_low, tl.trans(k_low), input_precision="ieee")
        scores = tl.dot(q_high, tl.trans(k_high), scores, input_precision="ieee") * scale_log2
        scores = tl.where(positions[None, :] < visible[:, None], scores, float("-inf"))

        new_peak = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet has peak -inf; subtracting that from itself would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(peak - shift)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
        peak = new_peak
    return peak, total, acc


@triton.jit
def merge_splits(
    peaks,
    totals,
    accs,
    counter,
    peak,
    total,
    acc,
    is_real,
    split,
    num_live,
    M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Store one split's softmax; in the last program to arrive, merge all of them.

    peaks, totals: pointers to [splits, M]; accs: to [splits, M, HEAD_DIM], all float32, of this request and
    head; is_real: [M], rows that are no padding of the tile; AT_ONCE: splits read in one go.
    Returns (is_last, total, acc): only where is_last holds is the result whole. The counter is back at zero
    afterwards, so that the next launch needs no memset.
    """
    rows = tl.arange(0, M)
    dims = tl.arange(0, HEAD_DIM)
    tile = rows[:, None] * HEAD_DIM + dims[None, :]
    tl.store(peaks + split * M + rows, peak, mask=is_real)
    tl.store(totals + split * M + rows, total, mask=is_real)
    tl.store(accs + split * M * HEAD_DIM + tile, acc, mask=is_real[:, None])
    # All threads' stores come before the release that the one counting thread does.
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    is_last = arrived == num_live - 1
    # Programs that are not last take no turn of the loop. Splits merge in index order whoever is last, so
    # the sum does not depend on timing.
    turns = tl.where(is_last, num_live, 0)
    best = tl.full([M], float("-inf"), tl.float32)
    whole = tl.zeros([M], tl.float32)
    merged = tl.zeros([M, HEAD_DIM], tl.float32)
    for first in range(0, turns, AT_ONCE):
        others = first + tl.arange(0, AT_ONCE)
        wanted = (others < num_live)[:, None] & is_real[None, :]
        line = others[:, None] * M + rows[None, :]
        its_peak = tl.load(peaks + line, mask=wanted, other=float("-inf"), cache_modifier=".cg")
        its_total = tl.load(totals + line, mask=wanted, other=0.0, cache_modifier=".cg")
        its_acc = tl.load(
            accs + line[:, :, None] * HEAD_DIM + dims[None, None, :],
            mask=wanted[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        new_best = tl.maximum(best, tl.max(its_peak, 0))
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        decay = tl.exp2(best - shift)
        its_decay = tl.exp2(its_peak - shift[None, :])
        whole = whole * decay + tl.sum(its_total * its_decay, 0)
        merged = merged * decay[:, None] + tl.sum(its_acc * its_decay[:, :, None], 0)
        best = new_best
    if is_last:
        tl.store(counter, 0)
    return is_last, whole, merged
