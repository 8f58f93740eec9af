"""The tokens of rows that are not plainly greedy, in one launch. Called by `SamplingHead` on CUDA, after the argmax.

One program a row; a plainly greedy one ends at once. Filters are thresholds, found by cutting the range of float32
into four again and again. One pass over the row keeps the four best scores of every lane in registers; a threshold
above all that this leaves out is found among them. Else, where much is kept, the row itself is gone over for each cut:
at most 17 times for top-k and as many for top-p. Nothing is sorted or stored, so a row needs no scratch memory. Masses
are fixed point (`sampling.mass`), so sums are exact in any order and the token is that of `choose_tokens`, but for the
last bit of exp.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher
from ostinato.engine.sampling import NUM_SETTINGS, mass_bits

__all__ = ["launch_sample"]

_BLOCK = 4096
_NUM_WARPS = 16


@triton.jit
def _key_of(score):
    """The place of a float32 among all of them: int32."""
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _score_of(key):
    """The float32 at a place."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _mass_of(scores, SCALE: tl.constexpr):
    return (tl.exp(scores) * SCALE).to(tl.int64)


@triton.jit
def _values(line, count_line, columns, has_penalties, repetition, presence, frequency, VOCAB: tl.constexpr):
    """Logits after penalties; -inf past the vocabulary. See `apply_penalties`."""
    inside = columns < VOCAB
    values = tl.load(line + columns, mask=inside, other=float("-inf")).to(tl.float32)
    if has_penalties:
        seen = tl.load(count_line + columns, mask=inside, other=0).to(tl.int32)
        outputs = (seen >> 1).to(tl.float32)
        repeated = tl.where(values > 0, tl.math.div_rn(values, repetition), values * repetition)
        values = tl.where(seen > 0, repeated, values)
        values = values - tl.where(outputs > 0, presence, 0.0) - frequency * outputs
    return values


@triton.jit
def _peak(line, count_line, repetition, presence, frequency, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The largest value after penalties, and its first column; a NaN counts as infinite."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    place = lanes
    for begin in range(0, VOCAB, BLOCK):
        columns = begin + lanes
        values = _values(line, count_line, columns, True, repetition, presence, frequency, VOCAB)
        values = tl.where(values == values, values, float("inf"))
        place = tl.where(values > best, columns, place)
        best = tl.maximum(values, best)
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, place, 0x7FFFFFFF), 0)


@triton.jit
def _at_or_above(
    line,
    count_line,
    has_penalties,
    repetition,
    presence,
    frequency,
    top,
    inverse,
    threshold,
    SCALE: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many tokens have at least the score ``threshold``, and their mass."""
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.int64)
    for begin in range(0, VOCAB, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        values = _values(line, count_line, columns, has_penalties, repetition, presence, frequency, VOCAB)
        scores = (values - top) * inverse
        is_kept = (scores >= threshold) & (columns < VOCAB)
        counts += is_kept.to(tl.int32)
        masses += tl.where(is_kept, _mass_of(scores, SCALE), 0)
    return tl.sum(counts, 0), tl.sum(masses, 0)


@triton.jit
def _lane_tops(
    line,
    count_line,
    has_penalties,
    repetition,
    presence,
    frequency,
    top,
    inverse,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The four largest scores that each lane meets, -inf where there are fewer; no other score is above a fourth."""
    first = tl.full([BLOCK], float("-inf"), tl.float32)
    second = first
    third = first
    fourth = first
    for begin in range(0, VOCAB, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        values = _values(line, count_line, columns, has_penalties, repetition, presence, frequency, VOCAB)
        scores = (values - top) * inverse
        lower = tl.minimum(first, scores)
        first = tl.maximum(first, scores)
        scores = tl.minimum(second, lower)
        second = tl.maximum(second, lower)
        lower = tl.minimum(third, scores)
        third = tl.maximum(third, scores)
        fourth = tl.maximum(fourth, lower)
    return first, second, third, fourth


@triton.jit
def _tally(scores, threshold, BY_MASS: tl.constexpr, SCALE: tl.constexpr):
    """For each lane: 1 if its score is at or above the threshold, or its mass."""
    if BY_MASS:
        found = tl.where(scores >= threshold, _mass_of(scores, SCALE), 0)
    else:
        found = (scores >= threshold).to(tl.int32)
    return found


@triton.jit
def _tally_among(first, second, third, fourth, threshold, BY_MASS: tl.constexpr, SCALE: tl.constexpr):
    """Of the scores that `_lane_tops` kept, how many are at or above the threshold, or their mass."""
    found = _tally(first, threshold, BY_MASS, SCALE) + _tally(second, threshold, BY_MASS, SCALE)
    found += _tally(third, threshold, BY_MASS, SCALE) + _tally(fourth, threshold, BY_MASS, SCALE)
    return tl.sum(found, 0)


@triton.jit
def _cuts(low, high):
    """Three places between ``low`` and ``high``, which lie at least two apart."""
    step = tl.maximum((high - low) // 4, 1)
    first = low + step
    second = tl.minimum(first + step, high)
    return first, second, tl.minimum(second + step, high)


@triton.jit
def _narrowed(low, high, first, second, third, sum_first, sum_second, sum_third, wanted):
    """The part of the range in which the highest place lies that reaches ``wanted``."""
    has_first, has_second, has_third = sum_first >= wanted, sum_second >= wanted, sum_third >= wanted
    high = tl.where(has_third, high, tl.where(has_second, third, tl.where(has_first, second, first)))
    low = tl.where(has_third, third, tl.where(has_second, second, tl.where(has_first, first, low)))
    reached = tl.where(has_third, sum_third, tl.where(has_second, sum_second, sum_first))
    return low, tl.where(reached == wanted, low + 1, high)  # exactly what is wanted lies at or above ``low``


@triton.jit
def _highest_among(
    first_scores,
    second_scores,
    third_scores,
    fourth_scores,
    low,
    wanted,
    BY_MASS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """`_highest_with`, of the scores that `_lane_tops` kept."""
    high = low * 0 + 1
    while high - low > 1:
        first, second, third = _cuts(low, high)
        sum_first = _tally_among(
            first_scores, second_scores, third_scores, fourth_scores, _score_of(first), BY_MASS, SCALE
        )
        sum_second = _tally_among(
            first_scores, second_scores, third_scores, fourth_scores, _score_of(second), BY_MASS, SCALE
        )
        sum_third = _tally_among(
            first_scores, second_scores, third_scores, fourth_scores, _score_of(third), BY_MASS, SCALE
        )
        low, high = _narrowed(low, high, first, second, third, sum_first, sum_second, sum_third, wanted)
    return _score_of(low)


@triton.jit
def _highest_with(
    line,
    count_line,
    has_penalties,
    repetition,
    presence,
    frequency,
    top,
    inverse,
    low,
    wanted,
    BY_MASS: tl.constexpr,
    SCALE: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The highest threshold at or above which lie ``wanted`` tokens (int32), or a mass of ``wanted`` (int64); the
    score at ``low`` if there is none above it. Thresholds that keep the same tokens, or the same mass, are as good."""
    high = low * 0 + 1  # the place after that of 0, the largest score: nothing lies there
    while high - low > 1:
        first, second, third = _cuts(low, high)
        score_first, score_second, score_third = _score_of(first), _score_of(second), _score_of(third)
        from_first = tl.zeros([BLOCK], tl.int64 if BY_MASS else tl.int32)
        from_second = tl.zeros([BLOCK], tl.int64 if BY_MASS else tl.int32)
        from_third = tl.zeros([BLOCK], tl.int64 if BY_MASS else tl.int32)
        for begin in range(0, VOCAB, BLOCK):
            columns = begin + tl.arange(0, BLOCK)  # past the vocabulary lies -inf, below each of the three
            values = _values(line, count_line, columns, has_penalties, repetition, presence, frequency, VOCAB)
            scores = (values - top) * inverse
            from_first += _tally(scores, score_first, BY_MASS, SCALE)
            from_second += _tally(scores, score_second, BY_MASS, SCALE)
            from_third += _tally(scores, score_third, BY_MASS, SCALE)
        sum_first, sum_second, sum_third = tl.sum(from_first, 0), tl.sum(from_second, 0), tl.sum(from_third, 0)
        low, high = _narrowed(low, high, first, second, third, sum_first, sum_second, sum_third, wanted)
    return _score_of(low)


@triton.jit
def _drawn(
    line,
    count_line,
    has_penalties,
    repetition,
    presence,
    frequency,
    top,
    inverse,
    row_settings,
    SCALE: tl.constexpr,
    NO_MASS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The token at which the summed mass, in the order of the vocabulary, passes the row's random share of it."""
    top_k = tl.load(row_settings + 1)
    top_p = tl.load(row_settings + 2)
    min_score = tl.load(row_settings + 3).to(tl.float32)
    uniform = tl.load(row_settings + 7)
    threshold = tl.full([], float("-inf"), tl.float32)
    has_top_k = (top_k > 0) & (top_k < VOCAB)
    has_top_p = top_p < 1
    num_kept = tl.minimum(top_k, VOCAB).to(tl.int32)
    first = tl.full([BLOCK], float("-inf"), tl.float32)
    second = first
    third = first
    fourth = first
    rest = tl.full([], float("inf"), tl.float32)  # a threshold above it is one of the scores that were kept
    if has_top_k | has_top_p:
        first, second, third, fourth = _lane_tops(
            line, count_line, has_penalties, repetition, presence, frequency, top, inverse, VOCAB, BLOCK
        )
        rest = tl.max(fourth, 0)
    if has_top_k:
        threshold = _highest_among(first, second, third, fourth, _key_of(threshold), num_kept, False, SCALE)
        if threshold <= rest:
            threshold = _highest_with(
                line, count_line, has_penalties, repetition, presence, frequency, top, inverse,
                _key_of(threshold), num_kept, False, SCALE, VOCAB, BLOCK,
            )  # fmt: skip
    if has_top_p:
        if threshold > rest:
            count = _tally_among(first, second, third, fourth, threshold, False, SCALE)
            mass = _tally_among(first, second, third, fourth, threshold, True, SCALE)
        else:
            count, mass = _at_or_above(
                line, count_line, has_penalties, repetition, presence, frequency, top, inverse,
                threshold, SCALE, VOCAB, BLOCK,
            )  # fmt: skip
        if has_top_k:  # of tokens tied at its limit top-k keeps all, but the share is of k tokens
            mass -= (count - num_kept).to(tl.int64) * _mass_of(threshold, SCALE)
        wanted = tl.maximum((top_p * mass.to(tl.float64)).to(tl.int64), 1)
        lowest = tl.maximum(tl.maximum(threshold, min_score), NO_MASS)
        threshold = _highest_among(first, second, third, fourth, _key_of(lowest), wanted, True, SCALE)
        if threshold <= rest:
            threshold = _highest_with(
                line, count_line, has_penalties, repetition, presence, frequency, top, inverse,
                _key_of(threshold), wanted, True, SCALE, VOCAB, BLOCK,
            )  # fmt: skip
    threshold = tl.maximum(threshold, min_score)

    if threshold > rest:
        mass = _tally_among(first, second, third, fourth, threshold, True, SCALE)
    else:
        _, mass = _at_or_above(
            line, count_line, has_penalties, repetition, presence, frequency, top, inverse,
            threshold, SCALE, VOCAB, BLOCK,
        )  # fmt: skip
    target = tl.minimum((uniform * mass.to(tl.float64)).to(tl.int64), mass - 1)  # the product may be rounded up
    lanes = tl.arange(0, BLOCK)
    running = mass * 0
    begin = num_kept * 0
    while (running <= target) & (begin < VOCAB):
        values = _values(line, count_line, begin + lanes, has_penalties, repetition, presence, frequency, VOCAB)
        scores = (values - top) * inverse
        running += tl.sum(tl.where(scores >= threshold, _mass_of(scores, SCALE), 0), 0)
        begin += BLOCK
    columns = tl.maximum(begin - BLOCK, 0) + lanes
    values = _values(line, count_line, columns, has_penalties, repetition, presence, frequency, VOCAB)
    scores = (values - top) * inverse
    masses = tl.where(scores >= threshold, _mass_of(scores, SCALE), 0)
    sums = running - tl.sum(masses, 0) + tl.cumsum(masses, 0)
    return tl.minimum(tl.min(tl.where(sums > target, columns, 0x7FFFFFFF), 0), VOCAB - 1)


@triton.jit
def _sample_kernel(
    logits,
    settings,
    count_rows,
    counts,
    out,
    NUM_SETTINGS: tl.constexpr,
    SCALE: tl.constexpr,
    NO_MASS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_settings = settings + row * NUM_SETTINGS
    inverse = tl.load(row_settings).to(tl.float32)
    owner = tl.load(count_rows + row)
    is_random = inverse > 0
    has_penalties = owner > 0
    if is_random | has_penalties:
        line = logits + row * VOCAB
        count_line = counts + owner * VOCAB
        repetition = tl.load(row_settings + 4).to(tl.float32)
        presence = tl.load(row_settings + 5).to(tl.float32)
        frequency = tl.load(row_settings + 6).to(tl.float32)
        token = tl.load(out + row)  # of the argmax: -1 if the row is not finite
        top = tl.load(line + tl.maximum(token, 0)).to(tl.float32)
        is_finite = token >= 0
        if has_penalties:
            top, peak = _peak(line, count_line, repetition, presence, frequency, VOCAB, BLOCK)
            token = peak.to(tl.int64)
            is_finite = (top < float("inf")) & (top > float("-inf"))
        if is_random & is_finite:
            token = _drawn(
                line, count_line, has_penalties, repetition, presence, frequency, top, inverse,
                row_settings, SCALE, NO_MASS, VOCAB, BLOCK,
            ).to(tl.int64)  # fmt: skip
        tl.store(out + row, tl.where(is_finite, token, -1))
        if has_penalties & is_finite:
            tl.debug_barrier()  # every thread has read the counts
            count = tl.load(count_line + token).to(tl.int32)
            tl.store(count_line + token, tl.where(count < 32766, count + 2, count).to(tl.int16))


@functools.cache
def _launcher(dtype: torch.dtype, vocab: int) -> Launcher:
    bits = mass_bits(vocab)
    return Launcher(
        _sample_kernel,
        f"sample[{dtype},{vocab}]",
        NUM_SETTINGS=NUM_SETTINGS,
        SCALE=2.0**bits,
        NO_MASS=-0.7 * bits - 1,  # a score at which exp is below one unit of mass
        VOCAB=vocab,
        BLOCK=min(_BLOCK, triton.next_power_of_2(vocab)),
        num_warps=_NUM_WARPS,
        enable_fp_fusion=False,  # each step rounded as on the CPU
    )


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(dtype: torch.dtype, logits: torch.Size) -> Launch:
    num_rows, vocab = logits
    return _launcher(dtype, vocab).at((num_rows, 1, 1))


def launch_sample(logits: Tensor, settings: Tensor, count_rows: Tensor, counts: Tensor, out: Tensor) -> None:
    """See `choose_tokens`; ``out`` holds the greedy choice of every row, and keeps it in plainly greedy rows.

    Args:
        logits: [num_rows, vocab], contiguous.
        settings: [num_rows, NUM_SETTINGS] float64, contiguous.
        count_rows: [num_rows] int64.
        counts: [any, vocab] int16, contiguous.
        out: [num_rows] int64.
    """
    _launch(logits.dtype, logits.shape)(logits, settings, count_rows, counts, out)
