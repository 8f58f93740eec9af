"""Copies hold what a tensor had when they began; a ring uses their memory again, and only once it is given back."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from ostinato.engine.request import Request
from ostinato.engine.sampling import CopyRing, PendingSample
from ostinato.engine.sampling.host_copy import HostCopy
from ostinato.errors import EngineError


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_a_copy_holds_what_stood_there_when_it_began() -> None:
    tokens = ids(1, 2)
    copy = CopyRing().start(tokens)
    tokens.fill_(7)
    assert copy.read().tolist() == copy.read().tolist() == [1, 2]


def test_memory_is_used_again_once_it_is_given_back() -> None:
    ring = CopyRing()
    first, second = ring.start(ids(1, 2)), ring.start(ids(3, 4))
    assert first is not second and first.read().tolist() == [1, 2]
    ring.give_back(first)
    third = ring.start(ids(5, 6))
    assert third is first and third.read().tolist() == [5, 6] and second.read().tolist() == [3, 4]
    assert ring.start(ids(7, 8)) not in (first, second)


def test_a_copy_of_another_length_has_other_memory() -> None:
    ring = CopyRing()
    two, late = ring.start(ids(1, 2)), ring.start(ids(3, 4))
    ring.give_back(two)
    three = ring.start(ids(5, 6, 7))
    ring.give_back(late)
    assert three.read().tolist() == [5, 6, 7] and ring.start(ids(8, 9, 10)) is not three
    ring.give_back(three)
    assert ring.start(ids(1, 2)).read().tolist() == [1, 2]


def test_memory_of_each_length_is_kept() -> None:
    """A request that comes changes the length, and another that goes changes it back."""
    ring = CopyRing()
    for copy in (two := ring.start(ids(1, 2)), three := ring.start(ids(3, 4, 5))):
        ring.give_back(copy)
    again = ring.start(ids(6, 7))
    assert again is two and again.read().tolist() == [6, 7]
    assert ring.start(ids(8, 9, 10)) is three and three.read().tolist() == [8, 9, 10]


def test_the_copy_is_under_way_before_anything_else_is_looked_at() -> None:
    class Ring(CopyRing):
        num_started = 0

        def start(self, vector: torch.Tensor) -> HostCopy:
            self.num_started += 1
            return super().start(vector)

    ring = Ring()
    with pytest.raises(EngineError, match="do not match the requests"):
        PendingSample(ids(5), torch.zeros(2, 9), [], ring=ring)
    assert ring.num_started == 1


def test_memory_that_was_made_in_inference_mode_is_written_outside() -> None:
    ring = CopyRing()
    with torch.inference_mode():
        copy = ring.start(ids(1, 2))
    ring.give_back(copy)
    assert ring.start(ids(3, 4)).read().tolist() == [3, 4]


def test_what_was_read_outlives_the_memory() -> None:
    ring, requests = CopyRing(), [Request(request_id="a", prompt_token_ids=[1])]
    sample = PendingSample(ids(5), torch.zeros(1, 9), requests, is_plain=True, ring=ring)
    chosen = sample.read().chosen
    assert sample.read().token_ids == [5], "it may be read again until it is released"
    sample.release()
    PendingSample(ids(6), torch.zeros(1, 9), requests, is_plain=True, ring=ring)
    assert chosen.tolist() == [5]


def test_an_interrupt_behind_the_launch_leaves_no_copy_that_nobody_waits_for() -> None:
    seen: list[str] = []

    class Kernel:
        def from_device(self, source: torch.Tensor) -> None:
            seen.append("launched")
            raise KeyboardInterrupt

    class Event:
        def record(self) -> None:
            seen.append("recorded")

        def synchronize(self) -> None:
            seen.append("waited")

    copy = HostCopy(ids(1, 2))
    copy._kernel, copy._event = Kernel(), Event()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        copy.start(ids(3, 4))
    del copy
    assert seen == ["launched", "recorded", "waited"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_copy_by_a_kernel_is_waited_for_before_its_memory_goes(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at a device that is lost, where many copies end at once and each would print its error."""
    waits: list[bool] = []
    printed: list[Any] = []

    class Event:
        def synchronize(self) -> None:
            waits.append(is_lost)
            if is_lost:
                raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    copy = HostCopy(ids(1, 2))
    copy._kernel, copy._event = object(), Event()  # type: ignore[assignment]
    del copy
    assert waits == [is_lost] and not printed
