"""The capture phase: one thread, collector off, the application's own freeze respected."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from ostinato.errors import CaptureNotAllowedError
from ostinato.runtime.capture import CaptureGate, gate


def test_check_needs_the_phase():
    gate = CaptureGate()
    with pytest.raises(CaptureNotAllowedError, match="outside the capture phase"):
        gate.check()
    with gate.phase():
        gate.check()
    with pytest.raises(CaptureNotAllowedError):
        gate.check()


def test_the_gate_closes_on_an_error_and_nests():
    gate = CaptureGate()
    with pytest.raises(ZeroDivisionError), gate.phase():
        with gate.phase():
            pass
        gate.check()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
    with pytest.raises(CaptureNotAllowedError):
        gate.check()


def test_the_phase_belongs_to_its_thread():
    gate, refused = CaptureGate(), []

    def elsewhere():
        for attempt in (gate.check, gate.phase().__enter__):
            try:
                attempt()
            except CaptureNotAllowedError as error:
                refused.append(error.message)

    with gate.phase():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        gate.check()
    assert refused == ["capture was tried outside the capture phase", "another thread has the capture phase open"]


class _Ring:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.me = self


def _generations(monkeypatch, is_brief):
    """That phases collect, one after another."""
    collected = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation))
    for brief in is_brief:
        with CaptureGate().phase(is_brief=brief), CaptureGate().phase():
            pass
    return collected


def test_a_brief_phase_looks_for_young_garbage_alone(monkeypatch):
    assert _generations(monkeypatch, [False, True, True, False, True]) == [2, 1, 1, 2, 1]


def test_every_tenth_of_them_looks_at_all_since_python_would_not(monkeypatch):
    assert _generations(monkeypatch, [False, *[True] * 20]) == [2, *[1] * 9, 2, *[1] * 9, 2]


def test_garbage_does_not_pile_up_while_brief_phases_follow_each_other():
    rings, kept = [], None
    for _ in range(40):
        with CaptureGate().phase(is_brief=True):
            kept, new = None, _Ring()  # what was kept is old by now
        rings.append(weakref.ref(new))
        kept = new
        del new
    assert sum(ring() is not None for ring in rings) <= 11 and kept is not None


def test_gates_share_one_collector():
    first, second = CaptureGate().phase(), CaptureGate().phase()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled(), "the second phase is still open"
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled():
    gc.disable()
    try:
        with CaptureGate().phase():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def is_frozen(count: int) -> bool:
    """Whether so many are more than Python 3.12 counts by itself."""
    return count > gate._MOST_IMMORTAL


def test_a_freeze_is_counted_once_and_its_end_is_seen(monkeypatch):
    """Counting walks all that is frozen, tens of milliseconds for a large program, and each phase asks."""
    counts, count = [], gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])

    def phase():
        with CaptureGate().phase():
            pass
        return is_frozen(count())

    assert phase(), "the test run froze its imports"
    counts.clear()
    assert [phase() for _ in range(3)] == [True] * 3 and not counts
    gc.unfreeze()
    try:
        assert [phase() for _ in range(3)] == [False] * 3, "what a phase freezes it takes back"
    finally:
        gc.freeze()
    assert len(counts) == 3 and not any(map(is_frozen, counts))
    assert phase() and is_frozen(counts[3]), "frozen again"


def test_the_heap_is_frozen_and_a_freeze_of_the_application_kept():
    count = gc.get_freeze_count()
    assert is_frozen(count), "the test run froze its imports"
    with CaptureGate().phase():
        assert not is_frozen(gc.get_freeze_count() - count)
    assert not is_frozen(gc.get_freeze_count() - count)
    gc.unfreeze()
    try:
        with CaptureGate().phase():
            assert is_frozen(gc.get_freeze_count())
        assert not is_frozen(gc.get_freeze_count())
    finally:
        gc.freeze()


def test_objects_that_python_itself_counts_as_frozen_are_no_frozen_heap(monkeypatch: pytest.MonkeyPatch):
    # As Python 3.12 does after a collection, with its immortal objects.
    monkeypatch.setattr(gate, "_collector", gate._Collector())
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: frozen.append("unfreeze"))
    with CaptureGate().phase():
        assert frozen == ["freeze"]
    assert frozen == ["freeze", "unfreeze"]


def test_a_freeze_before_most_is_imported_is_kept_too():
    """What was frozen is then a small part of all there is."""
    code = """
import gc
gc.freeze()
few = gc.get_freeze_count()
from ostinato.runtime.capture import CaptureGate
assert len(gc.get_objects()) > 10 * few
with CaptureGate().phase():
    pass
assert gc.get_freeze_count() > few / 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
