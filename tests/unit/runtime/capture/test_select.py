"""Backends by device type."""

import pytest
import torch

from ostinato.errors import DeviceUnavailableError, UnknownNameError
from ostinato.runtime.capture import select_backend


def test_the_cpu_is_simulated():
    backend = select_backend("cpu")
    assert (backend.name, backend.device) == ("simulated", torch.device("cpu"))
    assert select_backend("cpu") is not backend


def test_unknown_device_types_list_the_valid_ones():
    with pytest.raises(UnknownNameError, match="unknown device type for graphs 'meta' Fix: valid: cpu, cuda"):
        select_backend("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named():
    with pytest.raises(DeviceUnavailableError, match="device cuda:3 asked for, but torch finds no CUDA device"):
        select_backend("cuda:3")
