"""When a graph is captured in the background, and which."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ostinato.engine.execution import BackgroundCapture
from ostinato.runtime import GraphKey, RuntimeMode


def decode(n: int) -> GraphKey:
    return GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n, num_reqs=n, uniform_query_len=1)


class FakeCaptures:
    """Captures take ``seconds`` of the clock each."""

    def __init__(self, *sizes: int) -> None:
        self.now = 100.0
        self.seconds = 0.1
        self.failing: set[int] = set()
        self.executor = self
        self.graphed: Any = SimpleNamespace(
            pending=[decode(n) for n in sizes],
            plans={},
            costs=None,
            counters=SimpleNamespace(decode_sizes={}, mixed_sizes={}),
        )

    def clock(self) -> float:
        return self.now

    def capture_late(self, key: GraphKey) -> bool:
        self.now += self.seconds
        self.graphed.pending.remove(key)
        if key.num_tokens in self.failing:
            return False
        self.graphed.plans[key] = object()
        return True


def make(*sizes: int, share: float = 0.1) -> tuple[FakeCaptures, BackgroundCapture]:
    captures = FakeCaptures(*sizes)
    return captures, BackgroundCapture(captures, share=share, clock=captures.clock)  # type: ignore[arg-type]


def is_due(background: BackgroundCapture, *, is_idle: bool = False, deadline: float = math.inf) -> bool:
    return background.is_due(is_idle=is_idle, earliest_deadline=deadline)


def test_beside_requests_captures_keep_to_their_share() -> None:
    captures, background = make(*range(1, 101))
    spent = 0.0
    for _ in range(4000):
        captures.now += 0.01  # a step
        if is_due(background):
            background.capture_next(is_idle=False)
            spent += captures.seconds
            assert spent <= 0.1 * (captures.now - 100.0)
    assert spent > 0.05 * (captures.now - 100.0), "and they use it"


def test_none_while_there_is_no_share() -> None:
    captures, background = make(1, 2, share=0.0)
    captures.now += 1e6
    assert not is_due(background)
    assert is_due(background, is_idle=True), "but while nothing runs"


def test_idle_time_gives_no_credit() -> None:
    captures, background = make(1, 2)
    captures.now += 1.0
    assert not is_due(background)
    is_due(background, is_idle=True)
    captures.now += 1e6
    assert not is_due(background), "requests are back after a long night"
    captures.now += 5.0
    assert is_due(background)


@pytest.mark.parametrize(("seconds_left", "expected"), [(0.3, False), (0.5, True), (math.inf, True)])
def test_no_capture_comes_before_a_deadline(seconds_left: float, expected: bool) -> None:
    captures, background = make(1, 2, 3)
    background.capture_next(is_idle=True)
    captures.now += 1000.0
    assert background.expected_seconds == pytest.approx(0.2)
    assert is_due(background, deadline=captures.now + seconds_left) is expected


def test_the_traffic_decides_which_is_next() -> None:
    captures, background = make(16, 8, 4)
    captures.graphed.counters.decode_sizes = {3: 100, 12: 1}
    captures.graphed.costs = SimpleNamespace(
        cost_ms=lambda live, key: {16: 2.0, 8: 1.9, 4: 0.5}[key.num_tokens] if key is not None else 2.0
    )
    assert background.capture_next(is_idle=True) == decode(4)
    captures.graphed.costs = None
    assert background.capture_next(is_idle=True) == decode(16)


def test_progress_is_told_and_failures_are_not_tried_again() -> None:
    captures, background = make(4, 2)
    captures.failing = {4}
    assert background.to_dict() == {"pending": 2, "captured": 0, "failed": 0, "seconds": 0.0, "stopped_by": None}
    assert background.capture_next(is_idle=True) is None
    assert background.capture_next(is_idle=True) == decode(2)
    assert background.to_dict() == {"pending": 0, "captured": 1, "failed": 1, "seconds": 0.2, "stopped_by": None}
    assert background.capture_next(is_idle=True) is None
    assert not is_due(background, is_idle=True)
