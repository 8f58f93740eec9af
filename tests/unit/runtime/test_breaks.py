"""Break and JIT marks: free outside a capture, routed to the handler inside one."""

import functools
import threading

import pytest
import torch

from ostinato.errors import ConfigError, JitInCaptureError
from ostinato.runtime.breaks import (
    break_graph,
    graph_break,
    handling_breaks,
    is_planning,
    is_recording,
    jit_mark,
    recording,
    watching_jit,
)


class Spy:
    """A handler that runs each break and remembers its point."""

    def __init__(self):
        self.points = []

    def run_break(self, point, args, kwargs):
        self.points.append(point)
        with handling_breaks(None):
            return point.fn(*args, **kwargs)


def test_a_break_is_a_plain_call_outside_a_capture():
    @graph_break
    def double(x, *, times=2):
        """Doubles."""
        return x * times

    assert double(3) == 6
    assert double(3, times=5) == 15
    assert double.__name__ == "double" and double.__doc__ == "Doubles."


def test_a_handler_gets_the_point():
    @graph_break(name="layers.0.attention", mutates=("out",))
    def attend(q, out):
        return q

    spy = Spy()
    with handling_breaks(spy):
        assert attend(1, out=2) == 1
        break_graph()
    attend(1, 2)
    first, second = spy.points
    assert (first.name, first.mutates) == ("layers.0.attention", ("out",))
    assert first.source.rpartition(":")[0] == __file__
    assert first.mutated_arguments((1,), {"out": 2}) == [2]
    assert second.name == "break_graph"


def test_a_mutated_parameter_left_at_its_default_is_no_argument():
    @graph_break(mutates=("out",))
    def attend(q, out=None):
        return q

    assert attend.__ostinato_break__.mutated_arguments((1,), {}) == []


def test_nested_breaks_run_inline():
    @graph_break
    def inner(x):
        return x + 1

    @graph_break
    def outer(x):
        return inner(x) * 2

    spy = Spy()
    with handling_breaks(spy):
        assert outer(1) == 4
    assert [point.fn.__name__ for point in spy.points] == ["outer"]


def test_handlers_nest_and_are_restored():
    @graph_break
    def step():
        return None

    first, second = Spy(), Spy()
    with handling_breaks(first):
        with pytest.raises(ZeroDivisionError), handling_breaks(second):
            step()
            raise ZeroDivisionError
        step()
    assert (len(first.points), len(second.points)) == (1, 1)


def test_handlers_and_marks_belong_to_a_thread():
    seen = []
    with handling_breaks(Spy(), is_planning=True), recording():
        thread = threading.Thread(target=lambda: seen.append((is_recording(), is_planning(), break_graph())))
        thread.start()
        thread.join()
        assert is_recording() and is_planning()
    assert seen == [(False, False, None)]
    assert not is_recording() and not is_planning()


def test_a_break_is_no_part_of_planning():
    with handling_breaks(Spy(), is_planning=True):
        assert is_planning()
        with handling_breaks(None):
            assert not is_planning()
        assert is_planning()


def test_mutates_must_name_parameters():
    with pytest.raises(ConfigError, match=r"names no parameter: \['outt'\].*use names among \['q', 'out'\]"):

        @graph_break(mutates=("outt",))
        def attend(q, out): ...


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (torch.nonzero, "nonzero"),
        (functools.partial(torch.cumsum, dim=0), "partial"),
        (torch.nn.Identity(), "Identity"),
    ],
    ids=["builtin", "partial", "module"],
)
def test_callables_without_code_can_be_breaks(fn, name):
    marked = graph_break(fn)
    assert torch.equal(marked(torch.ones(2)), fn(torch.ones(2)))
    assert name in marked.__ostinato_break__.name
    assert marked.__ostinato_break__.source == "unknown"


def test_jit_marks(request):
    name = request.node.nodeid
    with recording(), pytest.raises(JitInCaptureError, match="compile for the first time") as caught:
        jit_mark(name)
    assert caught.value.context["kernel"] == name
    assert caught.value.context["at"].startswith(__file__)
    jit_mark(name)  # compiles: the refused call had not
    with recording():
        jit_mark(name)


def test_jit_marks_are_told_each_time_while_watched(request):
    name, seen = request.node.nodeid, []
    with watching_jit(seen.append):
        jit_mark(name)
        jit_mark(name)
    jit_mark(name)
    assert seen == [name, name]
