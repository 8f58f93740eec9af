"""Events are frozen values."""

import dataclasses

import pytest

from ostinato.telemetry import Event, GraphCaptured, RequestPreempted


def test_events_are_frozen_values():
    event = RequestPreempted(request_id="a", computed_tokens=3)
    assert isinstance(event, Event)
    assert event == dataclasses.replace(event)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.computed_tokens = 4


def test_fields_go_by_name_only():
    with pytest.raises(TypeError):
        GraphCaptured("key", 1.0, 1, 1)
