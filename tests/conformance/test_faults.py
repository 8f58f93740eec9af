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


@FAULTS
@DEVICES
def test_caught_or_prevented(fault, device):
    if fault.caught_by is None:
        expected, got = fault.plant.protected(device)
        assert agree((expected, got)), (expected, got)
    else:
        with pytest.raises(fault.caught_by) as caught:
            fault.plant.protected(device)
        assert caught.value.fix, "the error says what to do"


@FAULTS
def test_goes_wrong_without_protection(fault):
    expected, got = fault.plant.unprotected("cpu")
    assert not agree((expected, got)), (expected, got)


def test_rows_are_unique_and_told():
    assert list(ALL) == sorted({fault.row for fault in ALL.values()})
    assert all(fault.title and fault.source for fault in ALL.values())
