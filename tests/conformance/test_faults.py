"""Every planted fault is caught or cannot happen, and its control shows that it is a fault."""

import pytest
import torch

from ostinato.testing.faults import ALL, agree

FAULTS = pytest.mark.parametrize("fault", ALL.values(), ids=lambda fault: f"row {fault.row}")
DEVICES = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)


def check(run, caught_by):
    if caught_by is None:
        expected, got = run()
        assert agree((expected, got)), (expected, got)
    else:
        with pytest.raises(caught_by) as caught:
            run()
        assert caught.value.fix, "the error says what to do"


@FAULTS
@DEVICES
def test_caught_or_prevented(fault, device):
    check(lambda: fault.plant.protected(device), fault.caught_by)


@pytest.mark.parametrize(
    "fault", [f for f in ALL.values() if f.plant.traced is not None], ids=lambda fault: f"row {fault.row}"
)
@DEVICES
def test_caught_or_prevented_where_it_is_traced(fault, device):
    check(lambda: fault.plant.traced(device), fault.caught_when_traced)


@FAULTS
def test_goes_wrong_without_protection(fault):
    expected, got = fault.plant.unprotected("cpu")
    assert not agree((expected, got)), (expected, got)


def test_rows_are_unique_and_told():
    assert list(ALL) == sorted({fault.row for fault in ALL.values()})
    assert all(fault.title and fault.source for fault in ALL.values())


def test_what_tracing_changes_is_planted_traced():
    assert [row for row, fault in ALL.items() if fault.plant.traced is not None] == [3, 4, 8, 9, 16, 17, 18, 19]
