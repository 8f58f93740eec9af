"""The ledger never counts twice and never goes below zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.runtime.memory import Ledger


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 1 << 50), max_size=8))
def test_total_is_the_sum(owners):
    ledger = Ledger()
    for owner, num_bytes in owners.items():
        ledger.enter(owner, num_bytes)
    assert ledger.total_bytes == sum(owners.values())
    assert ledger.owners == owners


def test_text_and_dict():
    ledger = Ledger()
    ledger.enter("graph pool", 3 << 20)
    assert ledger.to_dict() == {"graph pool": 3 << 20, "total": 3 << 20}
    assert str(ledger).splitlines()[0].split() == ["graph", "pool", "3.00", "MiB"]
    assert str(ledger).splitlines()[1].split()[0] == "total"


def test_negative_bytes_are_refused():
    with pytest.raises(ConfigError, match="pages would hold -1 bytes"):
        Ledger().enter("pages", -1)


def test_an_owner_enters_once():
    ledger = Ledger()
    ledger.enter("pages", 1)
    with pytest.raises(ConfigError, match="pages is in the ledger already"):
        ledger.enter("pages", 1)
    assert ledger.total_bytes == 1
