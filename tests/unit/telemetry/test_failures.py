"""Failures are counted by kind, and steps are none."""

from ostinato.telemetry import FailureCounters


def test_each_kind_is_counted(traffic):
    failures = FailureCounters()
    for event in traffic:
        failures.emit(event)
    assert failures.snapshot() == {
        "preemptions": 1,
        "failed_steps": 1,
        "failed_requests": 5,
        "failed_captures": 1,
        "quarantines": 1,
        "failed_receivers": 1,
        "engine_deaths": 1,
        "ceiling_warnings": 1,
    }
