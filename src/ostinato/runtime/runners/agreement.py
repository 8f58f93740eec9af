"""How far two runs of one callable are apart, and how far is too far.

Pure comparison of tensors; who ran what stays with the caller (`doctor`, `qualify`). The gap of two float tensors
is their largest difference over the largest magnitude that was expected: a bound that cancellation in single
elements does not break, as an element-wise relative bound would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from ostinato.runtime.nest import leaves

__all__ = ["OTHER_SHAPE_TOLERANCES", "TOLERANCES", "Gap", "find_gap", "has_same_bits", "same_bits"]

TOLERANCES: Final[dict[torch.dtype, float]] = {
    torch.float64: 1e-4,
    torch.float32: 1e-4,
    torch.bfloat16: 2e-2,
    torch.float16: 1e-2,
}
"""Largest gap by dtype of two runs at one shape that may sum in another order; other dtypes must be equal."""
OTHER_SHAPE_TOLERANCES: Final[dict[torch.dtype, float]] = {
    torch.float64: 1e-4,
    torch.float32: 1e-3,
    torch.bfloat16: 1e-1,
    torch.float16: 5e-2,
}
"""The same where one run has fewer rows: matrix products then take other kernels, and depth multiplies what that
changes (logits of a 30-layer model differ by 1.5e-4 in float32)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The first tensor, or plain value, in which two results are too far apart."""

    path: str
    """Where in the result: ``[0]``, ``['logits']``; empty for the result itself."""
    relative: float
    """The gap; infinite where NaN, shapes or whole numbers differ."""
    detail: str


def find_gap(expected: Any, got: Any, *, is_exact: bool, is_other_shape: bool = False) -> tuple[Gap | None, float]:
    """The first difference beyond tolerance between two nested results, and the largest gap of all that passed.

    Args:
        is_exact: equal bits are asked for.
        is_other_shape: the runs had different numbers of rows.
    """
    tolerances = OTHER_SHAPE_TOLERANCES if is_other_shape else TOLERANCES
    largest = 0.0
    ours, theirs = list(leaves(expected)), list(leaves(got))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return Gap("", float("inf"), "the results nest in different ways"), largest
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if a is not b and a != b:
                return Gap(path, float("inf"), f"{a!r} expected, {b!r} got"), largest
            continue
        relative, detail = _relative_gap(a, b)
        passes = has_same_bits(a, b) if is_exact else relative <= tolerances.get(a.dtype, 0.0)
        if not passes:
            return Gap(path, relative, detail or "the same values in other bits"), max(largest, relative)
        largest = max(largest, relative)
    return None, largest


def has_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether shape, dtype and every bit agree; NaN equals the same NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(same_bits(one, other).all())


def same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Element by element, of tensors of one shape and dtype."""
    if one.dtype in _INTEGER_VIEWS:
        view = _INTEGER_VIEWS[one.dtype]
        return one.contiguous().view(view) == other.contiguous().view(view)
    if one.dtype.is_complex:
        return same_bits(torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())).all(-1)
    return one == other


_INTEGER_VIEWS: Final[dict[torch.dtype, torch.dtype]] = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


def _relative_gap(expected: torch.Tensor, got: torch.Tensor) -> tuple[float, str]:
    """The gap and, where it is infinite or not zero, what it is made of."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return float("inf"), f"{_spec(expected)} expected, {_spec(got)} got"
    if expected.numel() == 0:
        return 0.0, ""
    if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
        differs = expected != got
        count = int(differs.sum())
        return (float("inf"), f"{count} of {expected.numel()} values, {_first(differs)}") if count else (0.0, "")
    wide = expected.dtype if expected.dtype.is_complex else torch.float64
    a, b = expected.to(wide), got.to(wide)
    is_finite = a.isfinite() & b.isfinite()
    differs = ~is_finite & ~((a == b) | (a.isnan() & b.isnan()))
    if bool(differs.any()):
        return float("inf"), f"NaN or infinity in one of them alone, {_first(differs)}"
    apart = torch.where(is_finite, a - b, 0).abs()
    largest = float(apart.max())
    if largest == 0:
        return 0.0, ""
    scale = float(torch.where(is_finite, a, 0).abs().max())
    relative = largest / scale if scale > 0 else float("inf")
    return relative, f"largest difference {largest:.3g} where values reach {scale:.3g}, {_first(apart == largest)}"


def _first(where: torch.Tensor) -> str:
    index = where.reshape(-1).nonzero()[0].item()
    position = []
    for size in reversed(where.shape):
        position.append(int(index % size))
        index //= size
    return f"at {position[::-1]}"


def _spec(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
