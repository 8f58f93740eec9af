"""Slots refuse declarations that could give wrong answers."""

import pytest
import torch

from ostinato.errors import ConfigError
from ostinato.runtime.buffers import NUM_REQS, Slot, Tail

F32, I64 = torch.float32, torch.int64


def test_rows_and_text():
    slot = Slot(shape=(None, 4), dtype=F32)
    assert slot.rows({"num_tokens": 3, "num_reqs": 9}) == 3
    assert slot.describe() == "[num_tokens, 4] float32"
    offsets = Slot(shape=(None,), dtype=torch.int32, axis=NUM_REQS, extra=1)
    assert offsets.rows({"num_tokens": 3, "num_reqs": 9}) == 10
    assert offsets.describe() == "[num_reqs+1] int32"


def test_a_fixed_shape_has_no_axis():
    slot = Slot(shape=(3, 4), dtype=F32)
    assert slot.axis is None
    assert slot.rows({"num_tokens": 3}) is None


@pytest.mark.parametrize("shape", [(4, None), (None, None), (None, 2, None)])
def test_the_batch_axis_is_the_first(shape):
    with pytest.raises(ConfigError, match="batch axis must be the first dimension"):
        Slot(shape=shape, dtype=F32)


def test_unknown_axis():
    with pytest.raises(ConfigError, match=r"slot axis 'rows' Fix: use 'num_tokens' or 'num_reqs'"):
        Slot(shape=(None,), dtype=F32, axis="rows")


def test_unknown_tail():
    with pytest.raises(ValueError, match="garbage"):
        Slot(shape=(None,), dtype=F32, tail="garbage")


def test_an_index_slot_may_not_keep_its_tail():
    with pytest.raises(ConfigError, match="stale indices of a larger batch"):
        Slot(shape=(None,), dtype=I64, tail="keep", valid_range=(0, 8))


@pytest.mark.parametrize(
    ("tail", "fill", "valid_range", "value"),
    [("zero", 0, (1, 8), 0), ("fill", -1, (0, 8), -1), ("fill", 8, (0, 8), 8), ("zero", 5, (4, 8), 0)],
)
def test_the_tail_of_an_index_slot_is_a_safe_index(tail, fill, valid_range, value):
    with pytest.raises(ConfigError, match=f"tail value {value} of an index slot is outside its valid range"):
        Slot(shape=(None,), dtype=I64, tail=tail, fill=fill, valid_range=valid_range)


@pytest.mark.parametrize(("tail", "fill"), [("zero", 0), ("fill", 7), ("fill", 0)])
def test_safe_index_slots(tail, fill):
    assert Slot(shape=(None,), dtype=I64, tail=tail, fill=fill, valid_range=(0, 8)).tail is Tail(tail)


def test_a_fixed_index_slot_has_no_tail_to_check():
    Slot(shape=(4,), dtype=I64, tail="keep", valid_range=(5, 8))
