"""The warning that the load sits above the largest bucket: when it comes, what it says, and that it comes once."""

import logging

from ostinato.runtime.dispatch import Reason
from ostinato.telemetry import (
    CeilingWatch,
    DispatchCounters,
    EventBus,
    KeysPlanned,
    LogSink,
    MemorySink,
    StepDispatched,
)
from ostinato.telemetry.ceiling import OVER_LARGEST

ABOVE = {"runtime_mode": "EAGER", "bucket": "-", "reason": "OVER_LARGEST"}
FITS = StepDispatched(runtime_mode="FULL", bucket="8", reason="PADDED", live_tokens=5, padded_tokens=8, key="k")


def above(size, **more):
    return StepDispatched(**ABOVE, live_tokens=size, padded_tokens=size, **more)


def watched():
    sink, counters = MemorySink(), DispatchCounters()
    counters.ceiling = CeilingWatch(sink.emit)
    counters.emit(KeysPlanned(keys=("k",), largest_tokens=8, largest_reqs=4))
    return counters, sink


def test_the_reason_is_the_runtime_s():
    assert OVER_LARGEST == Reason.OVER_LARGEST


def test_half_of_256_steps_are_told_once():
    counters, sink = watched()
    for number in range(127):
        counters.emit(above(9 + number))
        counters.emit(FITS)
    assert not sink.events
    for _ in range(1000):
        counters.emit(above(300))
    (event,) = sink.events
    assert (event.num_over, event.num_recent, event.largest_tokens, event.largest_reqs) == (128, 256, 8, 4)
    assert (event.smallest_live_tokens, event.largest_live_tokens, event.largest_live_reqs) == (9, 300, None)
    assert "300 tokens (sizes, or token_sizes of an engine)" in event.fix


def test_fewer_than_half_are_none():
    counters, sink = watched()
    for _ in range(1000):
        for step in (above(9), FITS, FITS):
            counters.emit(step)
    assert not sink.events


def test_eager_for_another_reason_is_none():
    counters, sink = watched()
    for _ in range(1000):
        counters.emit(StepDispatched(**{**ABOVE, "reason": "NOT_UNIFORM"}, live_tokens=9, padded_tokens=9))
        counters.emit(StepDispatched(**{**ABOVE, "runtime_mode": "PIECEWISE"}, live_tokens=9, padded_tokens=9, key="k"))
    assert not sink.events


def test_decode_names_the_requests():
    counters, sink = watched()
    for _ in range(200):
        counters.emit(above(6, live_reqs=6, is_decode=True))
    assert sink.events[0].largest_live_reqs == 6 and "up to 6 requests (decode_sizes)" in sink.events[0].fix


def test_reset_and_other_sizes_arm_it_again():
    counters, sink = watched()
    for number, arm in enumerate(
        (lambda: None, counters.reset, lambda: counters.emit(KeysPlanned(keys=("k",), largest_tokens=16)))
    ):
        arm()
        for _ in range(127):
            counters.emit(above(99))
        assert len(sink.events) == number, "what was seen before counts no more"
        for _ in range(200):
            counters.emit(above(99))
        assert len(sink.events) == number + 1
    assert sink.events[-1].largest_tokens == 16 and sink.events[-1].largest_reqs is None


def test_it_is_logged_as_a_warning(caplog):
    counters, _ = watched()
    counters.ceiling = CeilingWatch(EventBus(LogSink()).emit)
    counters.emit(KeysPlanned(keys=("k",), largest_tokens=8, largest_reqs=4))
    with caplog.at_level(logging.WARNING, logger="ostinato"):
        for _ in range(300):
            counters.emit(above(40))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "128 of the last 256 steps (40 to 40 tokens) ran eagerly: the largest bucket is 8 tokens, 4 requests of "
        "decode; capture a size of 40 tokens (sizes, or token_sizes of an engine), or give smaller batches"
    )
