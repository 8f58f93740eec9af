"""Numbers that a capture has frozen and the key does not carry: capture twice on different batches, and compare.

On a device a kernel's parameters hold addresses and unused bytes too, which change for no reason; so the first batch
is captured twice, and whatever differs between those two means nothing. Unused bytes are whatever the host's stack
held, and may follow the batch all the same: what a word of parameters means (`BakedDifference.is_word`), a replay must
show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ostinato.runtime.capture import BakedCall
from ostinato.runtime.runners import BreakStep, CapturedPlan

__all__ = ["BakedDifference", "baked_calls", "baked_differences"]

Baked = list[list[BakedCall]]
"""The calls of each segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BakedDifference:
    """One value that two captures of a key do not share."""

    segment: int
    call: int
    op: str
    argument: str
    """Empty where the captures call different ops."""
    one: Any
    other: Any
    is_word: bool = False
    """Whether it is one of `BakedCall.words`, which the kernel need not read."""

    @property
    def where(self) -> str:
        """For a report."""
        place = f"segment {self.segment}, op {self.call} {self.op}"
        return f"{place}, argument {self.argument}" if self.argument else place

    @property
    def what(self) -> str:
        """For a report."""
        if not self.argument:
            return f"one capture calls {self.one}, another one {self.other}"
        return f"argument {self.argument} of {self.op} is {self.one!r} in one capture and {self.other!r} in another"


def baked_calls(plan: CapturedPlan) -> Baked:
    """What ``plan`` has frozen."""
    return [entry.baked() for entry in plan.entries if not isinstance(entry, BreakStep)]


def baked_differences(one: Baked, other: Baked, *, again: Baked | None = None) -> Iterator[BakedDifference]:
    """What differs between two captures.

    Args:
        again: a second capture like ``one``; what differs there is noise.
    """
    noise = set() if again is None else {(d.segment, d.call, d.argument) for d in _all(one, again)}
    return (d for d in _all(one, other) if (d.segment, d.call, d.argument) not in noise)


def _all(one: Baked, other: Baked) -> Iterator[BakedDifference]:
    nothing: list[BakedCall] = []
    for segment, (ours, theirs) in enumerate(zip_longest(one, other, fillvalue=nothing)):
        for call, (a, b) in enumerate(zip_longest(ours, theirs)):
            if a is None or b is None or a.op != b.op:
                name = a.op if a else b.op if b else ""
                yield BakedDifference(segment=segment, call=call, op=name, argument="", one=_told(a), other=_told(b))
                break  # the rest of the segment cannot be paired
            yield from _of_call(segment, call, a, b)


def _of_call(segment: int, call: int, a: BakedCall, b: BakedCall) -> Iterator[BakedDifference]:
    missing = ("(number of arguments)", None)
    for ours, theirs, is_word in ((a.values, b.values, False), (a.words, b.words, True)):
        for (name, one), (_, other) in zip_longest(ours, theirs, fillvalue=missing):
            if not _equal(one, other):
                yield BakedDifference(
                    segment=segment, call=call, op=a.op, argument=name, one=one, other=other, is_word=is_word
                )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Sequence) and not isinstance(one, str) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other) or (one != one and other != other)  # NaN is equal to NaN here


def _told(call: BakedCall | None) -> str:
    """``aten::slice(dim=1, end=4)``: a call with its numbers, without layouts."""
    if call is None:
        return "nothing"
    numbers = ", ".join(f"{name}={value!r}" for name, value in call.values if not name.startswith("layout of "))
    return f"{call.op}({numbers})"
