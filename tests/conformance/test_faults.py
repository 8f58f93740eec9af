"""Every planted fault is caught or cannot happen, and its control shows that it is a fault."""

import pytest
import torch

from ostinato.testing.faults import ALL, agree

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def each(faults, devices_of):
    """One case a fault and device."""
    return pytest.mark.parametrize(
        ("fault", "device"),
        [
            pytest.param(fault, device, marks=GPU if device == "cuda" else [], id=f"row {fault.row}-{device}")
            for fault in faults
            for device in devices_of(fault)
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


@each(ALL.values(), lambda fault: fault.devices)
def test_caught_or_prevented(fault, device):
    check(lambda: fault.plant.protected(device), fault.caught_by)


@pytest.mark.parametrize("partition", ["fx", "inductor"])  # on a CPU inductor is fx, and must be as safe
@each([f for f in ALL.values() if f.plant.traced is not None], lambda fault: fault.devices)
def test_caught_or_prevented_where_it_is_traced(fault, device, partition):
    check(lambda: fault.plant.traced(device, partition), fault.caught_when_traced)


@each(ALL.values(), lambda fault: [fault.control_device])
def test_goes_wrong_without_protection(fault, device):
    expected, got = fault.plant.unprotected(device)
    assert not agree((expected, got)), (expected, got)


def test_rows_are_unique_and_told():
    assert list(ALL) == list(range(1, 36))
    assert all(f.title and f.source and f.protection and f.cost for f in ALL.values())


def test_only_what_needs_a_gpu_is_left_to_it():
    assert not [f.row for f in ALL.values() if "cpu" not in f.devices]
    assert [f.row for f in ALL.values() if f.control_device != "cpu"] == [20, 21]


def test_what_tracing_changes_is_planted_traced():
    traced = [row for row, fault in ALL.items() if fault.plant.traced is not None]
    assert traced == [2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 18, 19, 31, 35]
