"""Eager is the callable as it is, even where a handler is installed."""

from ostinato.runtime.breaks import graph_break, handling_breaks
from ostinato.runtime.runners import run_eager


class Refuses:
    def run_break(self, point, args, kwargs):
        raise AssertionError("eager work has no breaks")


def test_breaks_are_plain_calls():
    @graph_break
    def double(x):
        return 2 * x

    with handling_breaks(Refuses()):
        assert run_eager(lambda: double(3)) == 6
