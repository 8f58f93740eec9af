"""Ladders cover the largest size, have no gaps that waste more than they may, and nothing above the largest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.runtime.planning import decode_ladder, token_ladder

LADDERS = pytest.mark.parametrize("ladder", [decode_ladder, token_ladder])


@LADDERS
@given(largest=st.integers(1, 20_000))
def test_every_live_size_has_a_bucket(ladder, largest):
    sizes = ladder(largest)
    assert sizes[-1] == largest
    assert sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))


@given(largest=st.integers(1, 8192), live=st.integers(1, 8192))
def test_token_padding_is_bounded(largest, live):
    live = min(live, largest)
    bucket = next(size for size in token_ladder(largest) if size >= live)
    assert bucket < 2 * live if live <= 16 else bucket <= live * 1.25


@given(largest=st.integers(1, 1024), live=st.integers(1, 1024))
def test_decode_padding_is_bounded(largest, live):
    live = min(live, largest)
    bucket = next(size for size in decode_ladder(largest) if size >= live)
    assert bucket - live < (4 if live <= 8 else 8 if live <= 56 else 16 if live <= 256 else 32)


def test_written_out():
    assert decode_ladder(20) == (1, 2, 4, 8, 16, 20)
    assert token_ladder(40) == (1, 2, 4, 8, 16, 20, 24, 28, 32, 40)


@LADDERS
def test_nothing_below_one(ladder):
    with pytest.raises(ConfigError, match="the largest bucket is 0"):
        ladder(0)
