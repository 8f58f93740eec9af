"""Bulk capture: in order, each key a transaction, the first error kept."""

import traceback
import weakref

import pytest
import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.memory import GraphGrowth
from ostinato.runtime.runners import CapturedPlan, capture_all
from ostinato.telemetry import CaptureFailed, EventBus, GraphCaptured, MemorySink

KEYS = [GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n) for n in (8, 4, 2)]


def run(backend, errors):
    """Capture `KEYS`; ``errors`` maps num_tokens to what is raised. Report, events, calls of on_done."""
    sink, done = MemorySink(), []

    def capture_one(key):
        backend._gate.check()  # the phase is open
        if key.num_tokens in errors:
            raise errors[key.num_tokens]
        return CapturedPlan(key=key)

    report = capture_all(
        KEYS, capture_one, backend=backend, bus=EventBus(sink), on_done=lambda key, plan: done.append((key, plan))
    )
    return report, list(sink.events), done


def test_all_go_well(backend):
    report, events, done = run(backend, {})
    assert report.captured == KEYS
    assert report.first_error is None
    assert [event.key for event in events if isinstance(event, GraphCaptured)] == [str(key) for key in KEYS]
    assert [key for key, plan in done if plan is not None] == KEYS
    assert report.seconds >= 0


def test_what_each_key_took_adds_up_to_the_pool():
    with Graphed(
        lambda x: torch.nn.functional.layer_norm(x, (32,)) * 2,
        example=(torch.ones(64, 32),),
        config=GraphConfig(mode="full"),
    ) as graphed:
        report = graphed.warm_up().capture()
        assert list(report.costs) == report.captured == graphed.keys
        costs = list(report.costs.values())
        assert [cost.num_tokens for cost in costs] == [key.num_tokens for key in graphed.keys]
        pool_bytes = graphed.memory().owners["graph pool"]
        assert sum(cost.pool_bytes for cost in costs) == pool_bytes > 0
        assert costs[0].pool_bytes > max(cost.pool_bytes for cost in costs[1:]), "the first brings the memory"
        samples = [costs[0], costs[1], costs[-1]]
        predicted, _ = GraphGrowth.fit(samples).predict((c.kind, c.num_tokens) for c in costs if c not in samples)
        assert predicted == pytest.approx(pool_bytes, rel=0.1)


def test_a_key_that_failed_has_no_cost(backend):
    report, _, _ = run(backend, {8: RuntimeError()})
    assert list(report.costs) == KEYS[1:]


@pytest.mark.parametrize("error", [RuntimeError(), ValueError(), IndexError(), KeyError(), AssertionError()])
def test_a_failing_key_is_dropped_alone(backend, error):
    second = RuntimeError("later")
    report, events, done = run(backend, {8: error, 2: second})
    assert report.captured == [KEYS[1]]
    assert report.failed == {KEYS[0]: error, KEYS[2]: second}
    assert report.first_error is error
    assert done == [(KEYS[0], None), (KEYS[1], done[1][1]), (KEYS[2], None)]
    assert [type(event) for event in events] == [CaptureFailed, GraphCaptured, CaptureFailed]


def test_an_interrupt_is_no_failed_key(backend):
    with pytest.raises(KeyboardInterrupt):
        run(backend, {4: KeyboardInterrupt()})


def test_a_kept_error_keeps_no_memory_and_still_tells_where(backend):
    held = []

    def fail(key):
        local = torch.ones(4)
        held.append(weakref.ref(local))
        try:
            raise LookupError("page 7 is gone")
        except LookupError as first:
            raise ZeroDivisionError(local.shape) from first

    report = capture_all(KEYS[:1], fail, backend=backend, bus=EventBus(), on_done=lambda key, plan: None)
    assert held[0]() is None
    assert "in fail" in "".join(traceback.format_exception(report.first_error))
    assert isinstance(report.first_error.__cause__, LookupError)
