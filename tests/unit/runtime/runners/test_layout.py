"""A tensor counts as batch-major only while every witness says so."""

import torch

from ostinato.runtime.runners import RowLayout


def test_rows_that_follow_every_size():
    layout = RowLayout()
    for rows in (8, 4, 1):
        layout.observe("hidden", torch.empty(rows, 3), rows)
        layout.observe("state", torch.empty(8, 3), rows)
        layout.observe("scalar", torch.empty(()), rows)
    assert layout.is_batch_major("hidden")
    assert not layout.is_batch_major("state")
    assert not layout.is_batch_major("scalar")
    assert not layout.is_batch_major("never seen")


def test_one_witness_against_is_enough():
    layout = RowLayout()
    layout.observe("state", torch.empty(4), 4)
    assert layout.is_batch_major("state")
    layout.observe("state", torch.empty(4), 8)
    layout.observe("state", torch.empty(4), 4)
    assert not layout.is_batch_major("state")
