"""State that steps write: find what was written that should not have been.

A state tensor has one entry (a cache slot, a state row) in dimension 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ostinato.runtime.runners import Snapshot, find_gap, has_same_bits, same_bits

__all__ = ["Writes", "changed_rows", "checksum", "state_fault"]

_MOST_ROWS_TOLD = 6
_CHUNK_BYTES = 32 << 20  # torch widens what it sums


@dataclass(frozen=True, slots=True, eq=False)
class Writes:
    """What a step may write of one state tensor. Rows are indices into dimension 0, [num_rows] int64."""

    live: torch.Tensor
    """Rows of the live set: they must come out as eager leaves them."""
    spare: torch.Tensor | None = None
    """Rows that padded rows may write and nobody reads (the null page)."""


def checksum(tensor: torch.Tensor) -> int:
    """A sum over the bits of ``tensor``, contiguous, at the price of reading it once; any single change shows."""
    raw = tensor.view(-1).view(torch.uint8)
    raw = raw.view(torch.int32) if raw.numel() % 4 == 0 and raw.storage_offset() % 4 == 0 else raw
    parts = [part.sum(dtype=torch.int64) for part in raw.split(max(_CHUNK_BYTES // raw.element_size(), 1))]
    return int(torch.stack(parts).sum()) if parts else 0


def changed_rows(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    """Rows that differ by any bit."""
    if has_same_bits(before, after):
        return []
    differs = ~same_bits(before, after)
    if differs.dim() == 0:
        return [0]
    rows: list[int] = (
        differs.flatten(1).any(1).nonzero().flatten().tolist()
        if differs.dim() > 1
        else (differs.nonzero().flatten().tolist())
    )
    return rows


def state_fault(
    before: Snapshot,
    by_eager: Snapshot,
    by_replay: Snapshot,
    writes: Mapping[str, Writes],
    *,
    is_exact: bool,
    is_other_shape: bool = False,
) -> str | None:
    """What is wrong with the state that a replay left, in words, or None.

    Args:
        before: the state that both runs began with.
        writes: by name; a tensor that is not named must come out as eager leaves it, whole.
        is_exact: live rows must have the bits of eager.
        is_other_shape: eager ran on other numbers of rows; integers are left out then, since a choice between near
            equals may go either way.
    """
    for name, start in before.saved.items():
        expected, got = by_eager.saved[name], by_replay.saved[name]
        allowed = writes.get(name)
        if allowed is not None:
            spare = [] if allowed.spare is None else allowed.spare.tolist()
            outside = sorted(set(changed_rows(start, got)) - set(allowed.live.tolist()) - set(spare))
            if outside:
                return f"{name}: {_rows(outside)} written, outside the live set of {allowed.live.numel()} rows"
            expected, got = expected[allowed.live], got[allowed.live]
        is_chosen = not (expected.dtype.is_floating_point or expected.dtype.is_complex)
        if is_chosen and is_other_shape:
            continue
        gap, _ = find_gap(expected, got, is_exact=is_exact, is_other_shape=is_other_shape)
        if gap is not None:
            rows = changed_rows(expected, got)
            if allowed is not None:
                rows = allowed.live[torch.tensor(rows, device=allowed.live.device)].tolist() if rows else rows
            return f"{name}: {_rows(rows)} as eager does not leave them: {gap.detail}"
    return None


def _rows(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:_MOST_ROWS_TOLD]))
    more = f" and {len(rows) - _MOST_ROWS_TOLD} more" if len(rows) > _MOST_ROWS_TOLD else ""
    return f"rows {shown}{more}" if len(rows) != 1 else f"row {shown}"
