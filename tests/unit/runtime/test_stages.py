"""What may be called in which stage, and what the refusals say."""

from __future__ import annotations

import pytest

from ostinato.errors import ClosedError, RuntimeStateError
from ostinato.runtime import GraphKey, RuntimeMode
from ostinato.runtime.stages import Life, Stage

KEYS = [GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4)]


def test_a_step_out_of_order_is_told_which_order_there_is():
    life = Life()
    life.require(Stage.PLANNED, Stage.WARM, step="warm_up")
    with pytest.raises(RuntimeStateError, match=r"capture\(\) was called when the callable was planned"):
        life.require(Stage.WARM, step="capture")
    life.stage = Stage.WARM
    life.require(Stage.WARM, step="capture")


def test_nothing_to_capture_counts_as_captured_once_warm():
    life = Life()
    with pytest.raises(RuntimeStateError):
        life.require_captured([], step="measure")
    life.stage = Stage.WARM
    life.require_captured([], step="measure")
    with pytest.raises(RuntimeStateError, match="warmed up"):
        life.require_captured(KEYS, step="measure")
    life.stage = Stage.CAPTURED
    life.require_captured(KEYS, step="measure")


def test_what_was_closed_stays_closed():
    life = Life()
    life.require_open()
    assert not life.is_over
    life.end()
    assert life.is_over and life.stage is Stage.CLOSED
    for refused in (life.require_open, lambda: life.require(Stage.CAPTURED, step="qualify")):
        with pytest.raises(ClosedError):
            refused()
