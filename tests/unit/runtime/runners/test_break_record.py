"""Numbers and strings that a break is given: what changes from run to run may not be frozen."""

import pytest
import torch

from ostinato.errors import FrozenValueError
from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.runtime.runners.break_record import BreakRecord
from ostinato.telemetry import BreaksMissing, MemorySink

H = torch.ones(2)


def point_of(fn):
    return graph_break(fn).__ostinato_break__


@graph_break
def brk(h, n=0, *, options=None):
    return h


POINT = brk.__ostinato_break__


def recorded(*args, **kwargs):
    record = BreakRecord()
    record.add(POINT, args, kwargs)
    return record


@pytest.mark.parametrize(
    ("seen", "now"),
    [
        (((H, 3), {}), ((H, 3), {})),
        (((H, 3), {}), ((H,), {"n": 3})),  # the same by another spelling
        (((H,), {}), ((H * 2,), {})),  # tensors may differ
        (((H, float("nan")), {}), ((H, float("nan")), {})),
        (((H,), {"options": {"a": [1, "x"]}}), ((H,), {"options": {"a": [1, "x"]}})),
        (((H, object()), {}), ((H, object()), {})),  # no plain value: nothing is known of it
    ],
)
def test_the_same_again(seen, now):
    recorded(*seen[0], **seen[1]).check(0, POINT, now[0], now[1])


@pytest.mark.parametrize(
    ("seen", "now", "name"),
    [
        (((H, 3), {}), ((H, 4), {}), "n"),
        (((H, 3), {}), ((H, None), {}), "n"),
        (((H, "a"), {}), ((H, "b"), {}), "n"),
        (((H, True), {}), ((H, False), {}), "n"),
        (((H, 1.0), {}), ((H, float("nan")), {}), "n"),
        (((H, 3), {}), ((H,), {"n": 4}), "n"),
        (((H,), {}), ((H, 4), {}), "n"),  # first by its default
        (((H, 4), {}), ((H,), {}), "n"),
        (((H,), {"options": {"a": [1, 2]}}), ((H,), {"options": {"a": [1, 5]}}), "options['a'][1]"),
    ],
)
def test_another_value_is_named(seen, now, name):
    with pytest.raises(FrozenValueError) as caught:
        recorded(*seen[0], **seen[1]).check(0, POINT, now[0], now[1])
    assert f"argument {name!r} of break 'brk'" in caught.value.message
    assert caught.value.context["source"].startswith(__file__)
    assert {"at_warm_up", "at_capture"} <= set(caught.value.context)


def test_another_break_in_its_place_is_not_compared():
    record = recorded(H, 3)
    record.check(0, point_of(lambda h, n: h), (H, 4), {})
    record.check(1, POINT, (H, 4), {})
    assert len(record) == 1


def test_a_function_without_a_signature():
    point = point_of(torch.cumsum)
    record = BreakRecord()
    record.add(point, (H, 0), {})
    record.check(0, point, (H, 0), {})
    with pytest.raises(FrozenValueError, match="argument '1'"):
        record.check(0, point, (H, 1), {})


# --- against a later run ----------------------------------------------------------------------------


def run_of(*calls):
    record = BreakRecord()
    for point, value in calls:
        record.add(point, (H, value), {})
    return record


OTHER = point_of(lambda h, n: h)


@pytest.mark.parametrize(
    ("at_capture", "now"),
    [
        ([(POINT, 1), (OTHER, 2)], [(POINT, 1), (OTHER, 2)]),
        ([(POINT, 1), (POINT, 2)], [(POINT, 2), (POINT, 1)]),  # a compiler's order
        ([(POINT, float("nan"))], [(POINT, float("nan"))]),
        ([(POINT, 1)], [(POINT, 1.0)]),  # an op that takes decimals
        ([], [(POINT, 1)]),  # a full graph has no breaks
        ([(POINT, 1)], [(POINT, 2), (POINT, 3)]),  # other breaks: nothing is known of which is which
    ],
)
def test_nothing_has_changed_since(at_capture, now):
    assert run_of(*now).changed_since(run_of(*at_capture)) is None


@pytest.mark.parametrize(
    ("at_capture", "now", "was", "is_now"),
    [
        ([(POINT, 1)], [(POINT, 5)], "1", "5"),
        ([(POINT, 1), (POINT, 2), (OTHER, 3)], [(POINT, 2), (POINT, 7), (OTHER, 3)], "1", "7"),
        ([(OTHER, 3), (POINT, "a")], [(POINT, "b"), (OTHER, 3)], "'a'", "'b'"),
        ([(POINT, 1)], [(POINT, None)], "1", "None"),
    ],
)
def test_what_has_changed_since_is_named(at_capture, now, was, is_now):
    error = run_of(*now).changed_since(run_of(*at_capture))
    assert isinstance(error, FrozenValueError)
    assert "argument 'n' of break 'brk' has changed since capture" in error.message
    assert (error.context["at_capture"], error.context["now"]) == (was, is_now)
    assert error.context["source"] == POINT.source


# --- in a capture -----------------------------------------------------------------------------------


class Advancing:
    """A host number that each run advances, as an offset into a cache."""

    def __init__(self):
        self.offset = 0

    def __call__(self, x):
        self.offset += 1
        return shift(x + 1, self.offset) + 1


@graph_break
def shift(h, offset):
    return h + offset


@pytest.mark.parametrize("warm_up_runs", [1, 2])
def test_an_argument_that_changed_between_warm_up_and_capture(warm_up_runs):
    config = GraphConfig(mode="piecewise", sizes=(4,), warm_up_runs=warm_up_runs)
    with Graphed(Advancing(), example=(torch.ones(4, 2),), config=config) as graphed:
        graphed.warm_up()
        with pytest.raises(FrozenValueError, match="argument 'offset' of break 'shift'") as caught:
            graphed.capture()
    assert int(caught.value.context["at_capture"]) > int(caught.value.context["at_warm_up"])


def test_the_key_alone_is_dropped(ready):
    state = {"n": 0}

    def fn(x):
        if x.shape[0] == 4:
            state["n"] += 1
        return shift(x + 1, state["n"] if x.shape[0] == 4 else 10) + 1

    graphed = ready(fn, torch.ones(8, 2), mode="piecewise", sizes=(4, 8))
    assert [key.num_tokens for key in graphed.plans] == [8]
    assert graphed(torch.ones(3, 2)).eq(13).all()


def test_one_number_a_key_is_no_change(ready):
    graphed = ready(lambda x: shift(x, x.shape[0]) + 0, torch.ones(8, 2), mode="piecewise", sizes=(4, 8))
    assert graphed(torch.ones(3, 2)).eq(5).all()
    assert graphed(torch.ones(8, 2)).eq(9).all()


def test_a_full_graph_takes_the_break_in_and_does_not_look(ready):
    """There the number is frozen without a break in between; only the doctor finds it."""
    with pytest.raises(FrozenValueError):
        ready(Advancing(), torch.ones(4, 2), mode="piecewise", sizes=(4,))
    ready(Advancing(), torch.ones(4, 2), mode="full", sizes=(4,))


def test_missing_breaks_are_reported():
    """A flag that warm-up flips: the break is not met again, and what it did is frozen or gone."""
    state = {"is_warm": False}

    def flip():
        state["is_warm"] = True

    def fn(x):
        h = shift(x + 1, 1)
        return (h if state["is_warm"] else shift(h, 2)) + 1

    sink = MemorySink()
    config = GraphConfig(mode="piecewise", sizes=(4,))
    with Graphed(fn, example=(torch.ones(4, 2),), config=config, sinks=[sink], after_warm_up=flip) as graphed:
        graphed.warm_up()
        graphed.capture()
        (plan,) = graphed.plans.values()
    assert [e for e in sink.events if isinstance(e, BreaksMissing)] == [
        BreaksMissing(key="PIECEWISE tokens=4", expected=2, got=1)
    ]
    assert plan.num_missing_breaks == 1


def test_no_event_where_none_is_missing():
    sink = MemorySink()
    config = GraphConfig(mode="piecewise", sizes=(2, 4))
    with Graphed(lambda x: shift(x, 1) + 1, example=(torch.ones(4, 2),), config=config, sinks=[sink]) as graphed:
        graphed.warm_up()
        graphed.capture()
    assert not [e for e in sink.events if isinstance(e, BreaksMissing)]
