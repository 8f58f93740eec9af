"""The dispatcher: planned is not captured, blocked is not used, and what is recorded is an event."""

import dataclasses

import pytest

from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import Dispatcher, Reason
from ostinato.runtime.keys import LiveBatch, Mode, RuntimeMode
from ostinato.runtime.planning import plan_keys
from ostinato.telemetry import EventBus, KeysPlanned, MemorySink, StepDispatched

LIVE = LiveBatch(num_tokens=3)


@pytest.fixture
def sink():
    return MemorySink()


@pytest.fixture
def dispatcher(sink):
    keys = plan_keys(GraphConfig(sizes=(4, 8)), Mode.FULL, max_size=8)
    return Dispatcher(keys, bus=EventBus(sink))


def test_nothing_is_usable_before_capture(dispatcher):
    decision = dispatcher.decide(LIVE)
    assert decision.key is None
    assert decision.reason is Reason.NOT_CAPTURED_YET


def test_answers_follow_captures_and_blocks(dispatcher):
    large, small = dispatcher.keys
    dispatcher.decide(LIVE)
    dispatcher.mark_captured(large)
    assert dispatcher.decide(LIVE).key == large
    dispatcher.mark_captured(small)
    assert dispatcher.decide(LIVE).key == small
    dispatcher.block(small, Reason.QUARANTINED)
    assert dispatcher.decide(LIVE).key == large
    dispatcher.block(large, Reason.CAPTURE_FAILED)
    assert dispatcher.decide(LIVE).reason is Reason.CAPTURE_FAILED


def test_answers_are_cached(dispatcher):
    assert dispatcher.decide(LIVE) is dispatcher.decide(LiveBatch(num_tokens=3))


def test_deciding_counts_nothing_and_recording_does(dispatcher, sink):
    dispatcher.mark_captured(dispatcher.keys[0])
    sink.events.clear()
    decision = dispatcher.decide(LIVE)
    assert not sink.events
    dispatcher.record(decision, 0.25)
    assert list(sink.events) == [
        StepDispatched(
            runtime_mode=RuntimeMode.FULL.value,
            bucket="8",
            reason="PADDED",
            live_tokens=3,
            padded_tokens=8,
            key=str(dispatcher.keys[0]),
            launch_seconds=0.25,
        )
    ]


def test_the_planned_keys_are_told(dispatcher, sink):
    assert list(sink.events) == [KeysPlanned(keys=("FULL tokens=8", "FULL tokens=4"), largest_tokens=8)]
    reqs = GraphConfig(sizes=(16,), decode_sizes=(2, 4), max_num_reqs=4)
    keys = plan_keys(reqs, Mode.FULL_AND_PIECEWISE, max_size=16)
    Dispatcher(keys, bus=EventBus(sink), max_captured_tokens=64)
    told = sink.events[-1]
    assert (told.largest_tokens, told.largest_reqs, told.max_captured_tokens) == (16, 4, 64)


def test_other_keys_keep_what_stands_against_the_old_ones(dispatcher, sink):
    large, small = dispatcher.keys
    middle = dataclasses.replace(large, num_tokens=6)
    dispatcher.mark_captured(large)
    dispatcher.block(small, Reason.QUARANTINED)
    assert dispatcher.decide(LIVE).key == large  # cached
    dispatcher.replace_keys([large, middle, small])
    assert dispatcher.keys == [large, middle, small] and sink.events[-1].keys == tuple(map(str, dispatcher.keys))
    rejected = {rejection.reason for rejection in dispatcher.decide(LIVE).alternatives}
    assert dispatcher.decide(LIVE).key == large and rejected == {Reason.QUARANTINED, Reason.NOT_CAPTURED_YET}
    dispatcher.mark_captured(middle)
    assert dispatcher.decide(LIVE).key == middle
    dispatcher.replace_keys([large])
    assert dispatcher.decide(LIVE).key == large and not dispatcher.decide(LIVE).alternatives


def test_the_keys_cannot_be_changed_from_outside(dispatcher):
    dispatcher.keys.clear()
    assert len(dispatcher.keys) == 2
