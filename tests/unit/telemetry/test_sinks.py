"""A bus gives every event to every sink, and a sink that raises harms nobody."""

import logging

from ostinato.telemetry import CaptureFailed, EventBus, KeyQuarantined, LogSink, MemorySink, ModeResolved, ShadowFailed

EVENT = ModeResolved(asked="auto", resolved="full", reason="why not")


class Broken:
    def emit(self, event):
        raise ZeroDivisionError


def test_events_fan_out_in_order():
    first, second = MemorySink(), MemorySink()
    bus = EventBus(first)
    bus.emit(EVENT)
    bus.subscribe(second)
    other = CaptureFailed(key="k", error="e")
    bus.emit(other)
    assert list(first.events) == [EVENT, other]
    assert list(second.events) == [other]


def test_a_broken_sink_is_counted_and_the_others_still_served():
    last = MemorySink()
    bus = EventBus(Broken(), last)
    bus.emit(EVENT)
    assert list(last.events) == [EVENT]
    assert bus.num_dropped == 1


def test_memory_is_bounded():
    sink = MemorySink(capacity=2)
    for number in range(5):
        sink.emit(CaptureFailed(key=str(number), error=""))
    assert [event.key for event in sink.events] == ["3", "4"]


def test_the_log_has_what_an_operator_should_see(caplog):
    sink = LogSink()
    with caplog.at_level(logging.INFO, logger="ostinato"):
        sink.emit(EVENT)
        sink.emit(ModeResolved(asked="full", resolved="full", reason="as asked"))
        assert caplog.messages == []
        sink.emit(ModeResolved(asked="full", resolved="piecewise", reason="no support"))
        sink.emit(ModeResolved(setting="compile", asked="inductor", resolved="none", reason="a CPU"))
        sink.emit(CaptureFailed(key="FULL tokens=8", error="boom"))
        sink.emit(KeyQuarantined(key="FULL tokens=8", found_by="shadow", what="NaN", where="live output"))
        sink.emit(KeyQuarantined(key="FULL tokens=8", found_by="failures", what="it raised", where=""))
        sink.emit(ShadowFailed(key="FULL tokens=8", error="ValueError: bad"))
    assert caplog.messages == [
        "mode full became piecewise: no support",
        "compile inductor became none: a CPU",
        "capture of FULL tokens=8 failed and was dropped: boom",
        "FULL tokens=8 is quarantined (shadow): NaN; live output",
        "FULL tokens=8 is quarantined (failures): it raised",
        "the shadow of a step of FULL tokens=8 failed, it is not compared: ValueError: bad",
    ]
