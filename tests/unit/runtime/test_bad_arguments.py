"""What the public constructors are given by mistake: a typed error that says what to do."""

import pytest
import torch

from ostinato.errors import ConfigError, DeviceUnavailableError
from ostinato.runtime import Graphed, Workspace
from ostinato.telemetry import EventBus

X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "foo"}, "'foo' names no device"),
        ({"device": 3.5}, "3.5 names no device"),
        ({"capture_support": "x"}, "capture_support is 'x'"),
        ({"sinks": [3]}, "a sink is of type int"),
        ({"state": ["weight"]}, "state is a list with no tensor in it.*not names of them"),
        ({"state": {"step": 1}}, "state is a dict with no tensor in it"),
    ],
)
def test_graphed(settings, message):
    with pytest.raises(ConfigError, match=message):
        Graphed(lambda x: x, example=(X,), **settings)


@pytest.mark.parametrize("slots", [3, {}, {"x": 1}])
def test_slots(slots):
    with pytest.raises(ConfigError, match=r"slots map names to Slot"):
        Graphed(lambda x: x, slots=slots)


@pytest.mark.parametrize("num_bytes", [-1, "x", None, 1.5, True, 2**62])
def test_workspaces(num_bytes):
    with pytest.raises(ConfigError, match=r"bytes are asked of workspace 'w'|'w' cannot have"):
        Workspace("w", device="cpu", num_bytes=num_bytes)
    with pytest.raises(ConfigError, match=r"bytes are asked of workspace 'w'|'w' cannot have"):
        Workspace("w", device="cpu").reserve(num_bytes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there():
    with pytest.raises(DeviceUnavailableError, match="torch finds no CUDA device"):
        Workspace("w", device="cuda")


def test_a_bus_without_a_sink_is_fine():
    EventBus()
