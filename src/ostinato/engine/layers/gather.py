"""Rows of a table by their numbers: of the embedding by token, of the rotary table by position."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gather_rows"]

_WALKED_ROWS = 16
"""On CUDA ``index_select`` has a kernel for so many rows or fewer that walks them one after another (4 us for 8 rows,
7 for 16 on an H200); indexing has one that does not (1.1 us), but is slower at a single row."""


def gather_rows(table: Tensor, rows: Tensor) -> Tensor:
    """``table[rows]``: [num_all, width] and [num_rows] int64, each in ``[0, num_all)`` -> [num_rows, width]."""
    if not torch.compiler.is_compiling() and table.is_cuda and 1 < rows.shape[0] <= _WALKED_ROWS:
        return table[rows]
    return table.index_select(0, rows)
