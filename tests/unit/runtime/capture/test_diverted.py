"""A function is diverted for everybody who has it, and is as it was afterwards."""

import inspect
import sys

import pytest

from ostinato.runtime.capture.diverted import diverted


class Thing:
    def plain(self, a=1, *, b=2):
        return (a, b)

    def with_cell(self, a=1):
        return (__class__, a)


def logged(*args):
    """A decorator whose free variables are called as the variables of our own code are."""
    named = replacement = args

    def decorate(function):
        def logged_call(*given):
            return function(*given), args, named, replacement

        return logged_call

    return decorate


def doubling(original):
    return lambda *args, **named: (original(*args, **named), original(*args, **named))


@pytest.mark.parametrize(
    ("name", "value"), [("plain", (1, 2)), ("with_cell", (Thing, 1))], ids=["no free variable", "a free variable"]
)
def test_whoever_has_taken_it_is_diverted(name, value):
    thing, function = Thing(), getattr(Thing, name)
    taken, code = getattr(thing, name), function.__code__
    with pytest.raises(ZeroDivisionError), diverted(Thing, name, doubling):
        assert taken() == getattr(thing, name)() == function(thing) == (value, value)
        raise ZeroDivisionError
    assert taken() == value
    assert getattr(Thing, name) is function and function.__code__ is code


def test_arguments_and_defaults_are_those_of_the_original():
    with diverted(Thing, "plain", doubling):
        assert Thing().plain(3, b=4) == ((3, 4), (3, 4))
        assert Thing().plain(a=5) == ((5, 2), (5, 2))


def test_one_diversion_inside_of_another():
    with diverted(Thing, "with_cell", doubling):
        with diverted(Thing, "with_cell", doubling):
            assert Thing().with_cell() == (((Thing, 1),) * 2,) * 2
        assert Thing().with_cell() == ((Thing, 1),) * 2
    assert Thing().with_cell() == (Thing, 1)


def test_free_variables_may_have_any_name(monkeypatch):
    monkeypatch.setattr(Thing, "plain", logged(7)(Thing.plain))
    with diverted(Thing, "plain", doubling):
        assert Thing().plain(3) == (((3, 2), (7,), (7,), (7,)),) * 2
    assert Thing().plain(3) == ((3, 2), (7,), (7,), (7,))


def test_what_is_raised_inside_can_be_looked_at():
    """A debugger and pytest read the variables of every frame, and those of a cell are there."""

    def failing(_):
        def fail(*args):
            raise ValueError(args)

        return fail

    with diverted(Thing, "with_cell", failing), pytest.raises(ValueError, match="7") as caught:
        Thing().with_cell(7)
    frames = inspect.getinnerframes(caught.value.__traceback__)
    assert any(frame.frame.f_locals.get("__class__") is Thing for frame in frames)


def test_what_is_written_in_c_is_diverted_by_its_name(monkeypatch):
    monkeypatch.setattr(sys, "their_function", len, raising=False)
    with diverted(sys, "their_function", doubling):
        assert sys.their_function("abc") == (3, 3)
    assert sys.their_function is len


def test_what_somebody_has_put_there_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(sys, "their_function", len, raising=False)
    with diverted(sys, "their_function", doubling):
        sys.their_function = max
    assert sys.their_function is max
