"""The interpreter's switch interval: short while anybody wants it, and afterwards what it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from ostinato.engine.switching import switching_faster


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_it_is_short_until_the_last_of_several_ends(usual: float) -> None:
    """The second one begins within the first and outlasts it, on another thread."""
    begun, goes_on = threading.Event(), threading.Event()

    def outlast() -> None:
        with switching_faster():
            begun.set()
            goes_on.wait(10)

    thread = threading.Thread(target=outlast)
    with switching_faster():
        assert sys.getswitchinterval() == pytest.approx(0.0005)
        thread.start()
        assert begun.wait(10)
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    goes_on.set()
    thread.join()
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_what_is_shorter_already_stays() -> None:
    sys.setswitchinterval(0.0001)
    with switching_faster():
        assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.05)
    assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.05)


def test_an_error_ends_it(usual: float) -> None:
    with pytest.raises(KeyError), switching_faster():
        raise KeyError
    assert sys.getswitchinterval() == pytest.approx(usual)
