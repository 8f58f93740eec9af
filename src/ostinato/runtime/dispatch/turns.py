"""Turns: how a made-up step is timed, runs of it in a row. The one place that knows; no torch.

Where steps are served one right behind the other, the host prepares one while the device works on the one before, and
a step takes what the slower of the two needs for it. So its runs are launched in a row without a wait, and the device
marks when it is done with each. Where each step is waited for, host and device add up, and runs are timed one by one.
Which of the two holds, the caller of `Graphed.measure` says. Called by `measure` and `confirm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

__all__ = ["Mark", "StepRun", "TakeTurn", "TimedDevice", "Turn", "Turns"]


class StepRun(NamedTuple):
    """A step that can be run again and again."""

    ready: Callable[[], None]
    """Puts its inputs where it finds them. Not in what a run takes; called before each turn."""
    run: Callable[[], Any]
    """The whole step as serving does it, from inputs on the host's side of the work to launched outputs."""


class Turn(NamedTuple):
    """What a turn has taken."""

    seconds: Sequence[float]
    """Of each run that counts."""
    spent_seconds: float
    """Of the whole turn by the clock on the wall: putting inputs in place and runs that do not count are in it."""


TakeTurn = Callable[[StepRun, int], Turn]
"""Times as many runs of a step."""


class Mark(Protocol):
    """A moment of a device's: when it had done all that it was given before `set`."""

    def set(self) -> None:
        """Behind what was launched so far, without waiting. May be called anew."""
        ...

    def seconds_since(self, earlier: Any) -> float:
        """By the device's clock, from the mark ``earlier`` to this one; the device was waited for."""
        ...


class TimedDevice(Protocol):
    """What turns need of the device on which steps run."""

    def wait(self) -> None:
        """Until it has done all that it was given."""
        ...

    def marks(self, count: int) -> Sequence[Mark]:
        """Made already, so that setting one takes the host as little as can be."""
        ...


class Turns:
    """`TakeTurn` on ``device``.

    Args:
        device: the one on which steps run.
        overlap: time steps one right behind the other, by the device's marks. False: each from an idle device to an
            idle one, by ``clock``.
        clock: seconds on the host's side.
    """

    def __init__(self, device: TimedDevice, *, overlap: bool, clock: Callable[[], float]) -> None:
        self._device = device
        self._clock = clock
        self._times = self._in_a_row if overlap else self._one_by_one

    def __call__(self, step: StepRun, num_runs: int) -> Turn:
        """``num_runs`` runs of ``step``, its inputs put in place before."""
        self._device.wait()
        began = self._clock()
        step.ready()
        self._device.wait()
        seconds = self._times(step, num_runs)
        return Turn(seconds, self._clock() - began)

    def _in_a_row(self, step: StepRun, num_runs: int) -> list[float]:
        """From mark to mark, the first one behind a run that does not count.

        That run finds the device idle; if it found work left over, a step that waits for the host would hide behind
        that. Behind it, each run ends later than the one before by what host or device needs, whichever is more:
        nothing is faster than a steady state, however host and device share the work of a step.
        """
        marks = self._device.marks(num_runs + 1)
        for mark in marks:
            step.run()
            mark.set()
        self._device.wait()
        return [later.seconds_since(earlier) for earlier, later in pairwise(marks)]

    def _one_by_one(self, step: StepRun, num_runs: int) -> list[float]:
        found = []
        for _ in range(num_runs):
            began = self._clock()
            step.run()
            self._device.wait()
            found.append(self._clock() - began)
        return found
