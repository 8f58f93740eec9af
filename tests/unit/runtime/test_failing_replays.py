"""A key whose replays raise again and again is quarantined; single failures and bad inputs are not held against it."""

import pytest
import torch

from ostinato.errors import InputSpecError, RuntimeStateError, TensorReboundError
from ostinato.runtime import GraphConfig, Graphed, Reason, RuntimeMode, graph_break
from ostinato.telemetry import KeyQuarantined, MemorySink

X = torch.ones(4, 2)


class Program:
    """Its break raises what it is told to."""

    def __init__(self):
        self.failures = []
        self.weight = torch.full((2,), 2.0)

    def check(self, h):
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error

    def __call__(self, x):
        h = x * self.weight
        graph_break(self.check)(h)
        return h + 1


@pytest.fixture
def program():
    return Program()


@pytest.fixture
def sink():
    return MemorySink()


@pytest.fixture
def captured(program, sink):
    made = []

    def make(sizes=(4,), **config):
        config = GraphConfig(mode="piecewise", sizes=sizes, **config)
        made.append(Graphed(program, example=(X,), config=config, sinks=[sink]))
        made[-1].warm_up().capture()
        return made[-1]

    yield make
    for graphed in made:
        graphed.close()


def fail(graphed, program, *errors):
    program.failures = list(errors)
    for error in errors:
        with pytest.raises(type(error)):
            graphed(X)


def quarantined(sink):
    return [event for event in sink.events if isinstance(event, KeyQuarantined)]


def test_the_third_failure_in_a_row(captured, program, sink):
    graphed = captured()
    fail(graphed, program, ValueError("one"), ZeroDivisionError("two"))
    assert graphed.explain(X).reason is Reason.EXACT and not quarantined(sink)
    fail(graphed, program, ValueError("three"))
    (event,) = quarantined(sink)
    assert event.key == str(graphed.keys[0]) and event.found_by == "failures"
    assert event.what == "3 replays in a row raised, at last ValueError: three"
    decision = graphed.explain(X)
    assert decision.runtime_mode is RuntimeMode.EAGER and decision.reason is Reason.QUARANTINED
    assert torch.equal(graphed(X), X * 2 + 1)
    assert graphed.counters.by_reason == {"QUARANTINED": 1}


def test_a_larger_bucket_takes_over(captured, program):
    graphed = captured(sizes=(4, 8), max_size=8)
    fail(graphed, program, *[ValueError()] * 3)
    decision = graphed.explain(X)
    assert decision.key.num_tokens == 8
    assert Reason.QUARANTINED in [rejection.reason for rejection in decision.alternatives]
    assert torch.equal(graphed(X), X * 2 + 1)


def test_a_success_resets_the_count(captured, program, sink):
    graphed = captured()
    for _ in range(3):
        fail(graphed, program, ValueError(), ValueError())
        assert torch.equal(graphed(X), X * 2 + 1)
    assert not quarantined(sink)


def test_keys_are_counted_apart(captured, program, sink):
    graphed = captured(sizes=(2, 4))
    fail(graphed, program, ValueError(), ValueError())
    program.failures = [ValueError()] * 2
    for _ in range(2):
        with pytest.raises(ValueError):
            graphed(X[:2])
    assert not quarantined(sink)
    graphed(X[:2])  # the small key's success says nothing of the large one
    fail(graphed, program, ValueError())
    assert [event.key for event in quarantined(sink)] == [str(graphed.keys[0])]


def test_through_run(captured, program, sink):
    graphed = captured(failures_to_quarantine=1)
    program.failures = [ValueError()]
    decision = graphed.explain(X)
    with pytest.raises(ValueError):
        graphed.run(decision)
    assert quarantined(sink)


def test_a_guard_that_refuses_counts(captured, program, sink):
    """From then on eager steps answer, and they read the new weight."""
    graphed = captured()
    program.weight = torch.full((2,), 5.0)
    for _ in range(3):
        with pytest.raises(TensorReboundError):
            graphed(X)
    (event,) = quarantined(sink)
    assert "weight" in event.what
    assert torch.equal(graphed(X), X * 5 + 1)


def test_bad_inputs_and_misuse_do_not_count(captured, program, sink):
    graphed = captured(failures_to_quarantine=1)
    with pytest.raises(InputSpecError):
        graphed(X.double())
    fail(graphed, program, InputSpecError("of a callable inside the break"), RuntimeStateError("misuse"))
    assert not quarantined(sink) and graphed.explain(X).key is not None


def test_never(captured, program, sink):
    graphed = captured(failures_to_quarantine=0)
    fail(graphed, program, *[ValueError()] * 20)
    assert not quarantined(sink) and torch.equal(graphed(X), X * 2 + 1)


def test_an_interrupt_does_not_count(captured, program, sink):
    graphed = captured(failures_to_quarantine=1)
    fail(graphed, program, KeyboardInterrupt())
    assert not quarantined(sink)


def test_recapture_begins_anew(captured, program, sink):
    graphed = captured()
    fail(graphed, program, ValueError(), ValueError())
    graphed.recapture()
    fail(graphed, program, ValueError(), ValueError())
    assert not quarantined(sink)
    fail(graphed, program, ValueError())
    assert graphed.explain(X).key is None
    graphed.recapture()
    assert graphed.explain(X).key is not None and torch.equal(graphed(X), X * 2 + 1)


def test_with_a_shadow(captured, program, sink):
    graphed = captured(shadow_every=1)
    fail(graphed, program, *[ValueError()] * 3)
    assert [event.found_by for event in quarantined(sink)] == ["failures"]
    assert torch.equal(graphed(X), X * 2 + 1)
