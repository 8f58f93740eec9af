"""When a kept step gets its turn: within a share of the time, and in the end also under constant load."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ostinato.engine.execution import ShadowTurns
from ostinato.engine.execution.kept_reads import KeptReads


class FakeExecutor:
    """Keeps every step while none waits; a comparison takes ``seconds`` of the clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.seconds = 0.05
        self.num_finished = 0
        counts = SimpleNamespace(num_compared=0, num_skipped=0, num_dropped=0)
        self.graphed: Any = SimpleNamespace(shadow_key=None, shadow_counts=counts)

    def clock(self) -> float:
        return self.now

    def finish_shadow(self) -> None:
        self.now += self.seconds
        self.num_finished += 1
        self.graphed.shadow_key = None


def make(*, share: float = 0.1) -> tuple[FakeExecutor, ShadowTurns]:
    executor = FakeExecutor()
    return executor, ShadowTurns(executor, share=share, clock=executor.clock)  # type: ignore[arg-type]


@pytest.mark.parametrize("lives", [1, 3, math.inf], ids=["overwritten at once", "soon", "never"])
def test_under_constant_load_it_keeps_to_its_share_and_is_not_starved(lives: float) -> None:
    executor, turns = make()
    kept_for = 0
    for _ in range(4000):
        if turns.is_due(is_idle=False, earliest_deadline=math.inf):
            turns.run(is_idle=False)
            assert executor.num_finished * executor.seconds <= 0.1 * (executor.now - 100.0) + executor.seconds
        executor.now += 0.01  # a step, which is kept or writes over what was
        kept_for = kept_for + 1 if executor.graphed.shadow_key else 0
        if executor.graphed.shadow_key is None or kept_for > lives:
            executor.graphed.shadow_key, kept_for = "a key", 0
    assert executor.num_finished * executor.seconds > 0.05 * (executor.now - 100.0)


def test_nothing_is_due_where_nothing_waits_and_none_without_a_share() -> None:
    executor, turns = make(share=0.0)
    executor.now += 1e6
    assert not turns.is_due(is_idle=True, earliest_deadline=math.inf)
    executor.graphed.shadow_key = "a key"
    assert turns.is_due(is_idle=True, earliest_deadline=math.inf)
    assert not turns.is_due(is_idle=False, earliest_deadline=math.inf)


def test_none_comes_before_a_deadline() -> None:
    executor, turns = make(share=1.0)
    turns.run(is_idle=True)
    executor.now, executor.graphed.shadow_key = executor.now + 10.0, "a key"
    assert turns.expected_seconds == pytest.approx(0.1)
    assert not turns.is_due(is_idle=False, earliest_deadline=executor.now + 0.19)
    assert turns.is_due(is_idle=False, earliest_deadline=executor.now + 0.21)


def test_what_a_step_reads() -> None:
    tables = np.array([[3, 1, 0], [2, 7, 5]], dtype=np.int32)
    reads = KeptReads(tables, np.array([5, 12]), num_pages=8, page_size=4)
    read = {12, 13, 14, 15, 4, *range(8, 12), *range(28, 32), *range(20, 24)}
    assert {slot for slot in range(32) if reads.overlap(np.array([slot]))} == read
    assert reads.overlap(np.array([0, 5, 20])) and not reads.overlap(np.array([5, 6, 0, 17]))
