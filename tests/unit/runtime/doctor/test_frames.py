"""Whose line an error names."""

from __future__ import annotations

from collections.abc import Callable

from ostinato.runtime.doctor.frames import frames_of_error


def below(call: Callable[[], None]) -> None:
    call()


def culprit() -> None:
    raise RuntimeError("the device refused")


def translated(call: Callable[[], None]) -> None:
    try:
        below(call)
    except RuntimeError as error:
        raise ValueError("typed") from error


def raised_by(call: Callable[[], None]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_stack_begins_below_the_given_frame() -> None:
    stack = frames_of_error(raised_by(lambda: below(culprit)), below.__code__)
    assert [frame.code for frame in stack.frames] == [culprit.__code__]
    assert stack.place == stack.frames[-1]


def test_an_error_translated_above_that_frame_has_the_stack_of_its_cause() -> None:
    stack = frames_of_error(raised_by(lambda: translated(culprit)), below.__code__)
    assert [frame.code for frame in stack.frames] == [culprit.__code__]
    assert stack.place is not None and stack.place.line == culprit.__code__.co_firstlineno + 1


def test_an_error_from_elsewhere_keeps_its_own_stack() -> None:
    stack = frames_of_error(raised_by(culprit), below.__code__)
    assert stack.frames[-1].code is culprit.__code__
