"""Two captures side by side: which numbers differ, which differences mean nothing, and how they are told."""

from __future__ import annotations

from ostinato.runtime.capture import BakedCall
from ostinato.runtime.qualify.baked import baked_differences


def call(op: str, **values: object) -> BakedCall:
    return BakedCall(op, tuple(values.items()))


def test_equal_captures():
    calls = [[call("mul", other=2), call("add", alpha=float("nan"))], []]
    assert list(baked_differences(calls, [list(segment) for segment in calls])) == []


def test_numbers_are_named_with_their_place():
    one = [[call("a", x=1)], [call("b", y=(1, 2)), call("c", z=0)]]
    other = [[call("a", x=1)], [call("b", y=(1, 3)), call("c", z=0)]]
    (difference,) = baked_differences(one, other)
    assert difference.where == "segment 1, op 0 b, argument y"
    assert difference.what == "argument y of b is (1, 2) in one capture and (1, 3) in another"


def test_another_path_ends_the_comparison_of_its_segment():
    one = [[call("a"), call("slice", end=4), call("d", x=1)], [call("e", x=1)]]
    other = [[call("a"), call("alias"), call("d", x=2)], [call("e", x=2)]]
    first, second = baked_differences(one, other)
    assert first.where == "segment 0, op 1 slice"
    assert first.what == "one capture calls slice(end=4), another one alias()"
    assert second.where == "segment 1, op 0 e, argument x"


def test_more_calls_and_more_segments():
    (difference,) = baked_differences([[call("a")]], [[call("a"), call("b")]])
    assert difference.what == "one capture calls nothing, another one b()"
    (difference,) = baked_differences([[call("a")]], [[call("a")], [call("b")]])
    assert difference.where == "segment 1, op 0 b"


def test_what_differs_between_equal_captures_is_noise():
    one, again = [[call("k", word=1, grid=4)]], [[call("k", word=9, grid=4)]]
    assert list(baked_differences(one, [[call("k", word=5, grid=4)]], again=again)) == []
    (difference,) = baked_differences(one, [[call("k", word=5, grid=8)]], again=again)
    assert difference.argument == "grid"
