"""The interpreter's switch interval: short while anybody wants it, and afterwards what it was."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from ostinato.engine.switching import _switching, switching_faster


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


def test_a_forked_child_has_none_of_the_threads_that_wanted_it_short(usual: float) -> None:
    """Nor the one that held the lock."""

    def seen() -> list[float]:
        found = [sys.getswitchinterval()]
        with switching_faster():
            found.append(sys.getswitchinterval())
        return [*found, sys.getswitchinterval()]

    assert in_child(seen, held=True) == pytest.approx([usual, 0.0005, usual])
    assert in_child(seen, held=False) == pytest.approx([usual, 0.0005, usual])


def in_child(seen: Callable[[], list[float]], *, held: bool) -> list[float]:
    """What ``seen`` returns in a process that is forked within a block, which ends there first; ``held`` with a thread
    that has the lock."""
    reads, writes = os.pipe()
    with contextlib.ExitStack() as block, os.fdopen(reads) as there:
        block.enter_context(switching_faster())
        with _switching._lock if held else contextlib.nullcontext():
            pid = os.fork()
        if pid == 0:
            signal.alarm(10)  # else a lock that nobody gives back would be waited for
            try:
                before = sys.getswitchinterval()
                block.close()
                assert sys.getswitchinterval() == before
                os.write(writes, " ".join(map(str, seen())).encode())
            finally:
                os._exit(0)
        os.close(writes)
        return [float(word) for word in there.read().split()]
