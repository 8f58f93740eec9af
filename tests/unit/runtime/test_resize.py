"""Other sizes while running: answers before and after, one bad key among good ones, memory, state, and refusals."""

import threading

import pytest
import torch

from ostinato.errors import ConfigError, HostSyncError, RuntimeStateError, TensorReboundError
from ostinato.runtime import GraphConfig, Graphed, LiveBatch, Reason, RuntimeMode, graph_break
from ostinato.runtime.qualify import Qualifier
from ostinato.runtime.qualify.shadow import Shadow
from ostinato.telemetry import CaptureFailed, GraphClosed, KeyDropped, KeysPlanned, MemorySink

X = torch.arange(48.0).reshape(24, 2)


def net(x):
    return (x * 2 + 1).relu() - x


def sizes_of(graphed):
    return [key.num_tokens for key in graphed.keys]


def assert_like_eager(graphed, fn=net):
    for size in range(1, len(X) + 1):
        assert torch.equal(graphed(X[:size]), fn(X[:size])), f"{size} rows"


def bucket_of(graphed, size):
    decision = graphed.decide(LiveBatch(num_tokens=size))
    return decision.padded_tokens if decision.key is not None else decision.reason


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_answers_stay_and_buckets_follow(ready, mode):
    twice = graph_break(lambda x: x * 2)

    def fn(x):
        return twice(x + 1) - x

    graphed = ready(fn, X, sizes=(2, 8, 24), mode=mode)
    assert_like_eager(graphed, fn)
    report = graphed.resize(sizes=(24, 5, 8, 12))
    assert sizes_of(graphed) == [24, 12, 8, 5] == [key.num_tokens for key in graphed.plans]
    assert [key.num_tokens for key in report.added] == [12, 5] and not report.failed
    assert [key.num_tokens for key in report.retired] == [2] and report.seconds > 0
    assert [bucket_of(graphed, size) for size in (1, 5, 6, 12, 13)] == [5, 5, 8, 12, 24]
    assert_like_eager(graphed, fn)
    assert graphed.counters.by_runtime_mode["EAGER"] == 0
    graphed.check_guards()
    assert graphed.qualify().passed


def test_the_fx_partition_too(ready):
    graphed = ready(net, X, sizes=(8, 24), mode="piecewise", partition="fx")
    graphed.resize(sizes=(3, 11, 24))
    assert_like_eager(graphed)
    assert {RuntimeMode.PIECEWISE.value} == set(graphed.counters.by_runtime_mode)


def test_what_is_the_same_is_left_alone(ready):
    graphed = ready(net, X, sizes=(8, 24))
    plans = dict(graphed.plans)
    report = graphed.resize(sizes=(8, 24))
    assert (report.added, report.retired, report.failed) == ([], [], {}) and dict(graphed.plans) == plans
    assert graphed.resize().added == []


def refuses(sizes, at_warm_up=False):
    """A callable that cannot be captured (or run) with these sizes."""
    seen = []

    def fn(x):
        if x.shape[0] in sizes and (at_warm_up or seen.count(x.shape[0]) >= 2):
            if at_warm_up:
                raise ValueError("no such size")
            x.sum().item()
        seen.append(x.shape[0])
        return net(x)

    return fn


@pytest.mark.parametrize(("at_warm_up", "kind"), [(False, HostSyncError), (True, ValueError)])
def test_one_that_fails_is_dropped_alone_and_nothing_is_retired(ready, at_warm_up, kind):
    sink = MemorySink()
    graphed = ready(refuses({5}, at_warm_up), X, sizes=(2, 8, 24), hooks={"sinks": [sink]})
    before = dict(graphed.plans)
    sink.events.clear()
    report = graphed.resize(sizes=(5, 12, 24))
    assert [key.num_tokens for key in report.added] == [12] and report.retired == []
    ((failed, error),) = report.failed.items()
    assert failed.num_tokens == 5 and isinstance(error, kind)
    assert sizes_of(graphed) == [24, 12, 8, 2] and before.items() <= graphed.plans.items()
    assert [bucket_of(graphed, size) for size in (2, 5, 12)] == [2, 8, 12]
    assert [event.key for event in sink.events if isinstance(event, CaptureFailed)] == [str(failed)]
    assert str(failed) in report.to_dict()["failed"]
    assert not any(isinstance(event, GraphClosed) for event in sink.events)
    states = graphed.counters.snapshot()["keys"]
    assert (states["captured"], states["failed"]) == (4, 0), "what was never planned is not failed"
    for size in (1, 2, 6, 9, 24):
        assert torch.equal(graphed(X[:size]), net(X[:size]))


def test_an_interrupt_leaves_all_as_it_was(ready):
    graphed = ready(net, X, sizes=(8, 24))
    before, num_graphs = dict(graphed.plans), graphed.backend.memory().num_graphs

    def interrupt(key):
        if key.num_tokens == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graphed.resize(sizes=(5, 12, 24), on_key=interrupt)
    assert sizes_of(graphed) == [24, 8] and dict(graphed.plans) == before
    assert graphed.backend.memory().num_graphs == num_graphs
    assert_like_eager(graphed)


def test_what_is_retired_is_closed_and_its_memory_serves_again(ready):
    def fn(x):
        return torch.cat([x] * 512, dim=1) * 2  # outputs that are worth counting

    graphed = ready(fn, X, sizes=(16, 20, 24))
    reserved = [graphed.memory().owners["graph pool"]]
    (retired,) = (plan for key, plan in graphed.plans.items() if key.num_tokens == 20)
    for smaller in (19, 18, 17):
        graphed.resize(sizes=(16, smaller, 24))
        reserved.append(graphed.memory().owners["graph pool"])
        assert graphed.backend.memory().num_graphs == 3
    assert retired.is_closed and retired.outputs is None
    assert reserved[1] > reserved[0], "the new graph is captured before the old one goes"
    assert reserved[1:] == [reserved[1]] * 3, "what the old one held is used by the next"
    grown = ready(fn, X, sizes=(16, 17, 18, 19, 20, 24)).memory().owners["graph pool"]
    assert reserved[-1] < grown


def test_keys_that_are_retired_by_name_are_planned_no_longer(ready):
    sink = MemorySink()
    graphed = ready(net, X, sizes=(2, 8, 24), hooks={"sinks": [sink]})
    largest, smallest = graphed.keys[0], graphed.keys[-1]
    graphed.retire([largest, smallest], why="no step has so many")
    assert sizes_of(graphed) == [8] == [key.num_tokens for key in graphed.plans]
    assert [bucket_of(graphed, size) for size in (1, 8, 9)] == [8, 8, Reason.OVER_LARGEST]
    assert_like_eager(graphed)
    told = [
        (type(event).__name__, event.key, event.reason)
        for event in sink.events
        if isinstance(event, GraphClosed | KeyDropped)
    ]
    for key in (largest, smallest):
        assert ("GraphClosed", str(key), "retired") in told
        assert ("KeyDropped", str(key), "no step has so many") in told
    with pytest.raises(RuntimeStateError, match="is not planned"):
        graphed.retire([largest], why="again")


def test_the_events_tell_what_happened(ready):
    sink = MemorySink()
    graphed = ready(net, X, sizes=(2, 8, 24), hooks={"sinks": [sink]})
    graphed(X[:1])
    sink.events.clear()
    graphed.resize(sizes=(5, 8, 24))
    (planned,) = (event for event in sink.events if isinstance(event, KeysPlanned))
    assert planned.keys == tuple(map(str, graphed.keys))
    assert [(e.key, e.reason) for e in sink.events if isinstance(e, GraphClosed)] == [("FULL tokens=2", "retired")]
    found = graphed.counters.snapshot()
    assert found["never_hit"] == [f"FULL tokens={size}" for size in (24, 8, 5)] and found["keys"]["captured"] == 3


def test_state_and_random_numbers_are_as_if_nothing_had_run(ready):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.seen += 1
            return x + torch.rand(()) * 0 + self.seen * 0

    module, resets = Counting(), []

    def reset():
        resets.append(1)
        module.seen.zero_()

    graphed = ready(module, X, sizes=(8, 24), hooks={"after_warm_up": reset})
    graphed(X[:3])
    graphed(X[:9])
    before, resets[:] = module.seen.clone(), []
    torch.manual_seed(7)
    graphed.resize(sizes=(5, 12, 24))
    assert torch.equal(module.seen, before) and resets == [1]
    drawn = torch.rand(4)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(4))
    graphed(X[:5])
    assert torch.equal(module.seen, before + 1), "the new graph counts in the same memory"


def test_guards_hold_for_new_and_for_old_keys(ready):
    linear = torch.nn.Linear(2, 2)
    graphed = ready(linear, X, sizes=(8, 24))
    graphed.resize(sizes=(5, 8, 24))
    linear.weight = torch.nn.Parameter(torch.ones(2, 2))
    for size in (5, 8, 24):
        with pytest.raises(TensorReboundError):
            graphed(X[:size])
    with pytest.raises(TensorReboundError):
        graphed.resize(sizes=(5, 12, 24))
    assert sizes_of(graphed) == [24, 8, 5], "nothing was changed"
    graphed.recapture()
    graphed.resize(sizes=(3, 8, 24))
    assert torch.equal(graphed(X[:3]), linear(X[:3]))


def test_release_and_recapture_know_the_new_sizes(ready):
    graphed = ready(net, X, sizes=(2, 24))
    graphed.resize(sizes=(5, 24))
    graphed.recapture()
    assert [key.num_tokens for key in graphed.plans] == [24, 5]


def test_a_quarantined_key_stays_quarantined(ready):
    graphed = ready(net, X, sizes=(8, 24))
    graphed._dispatcher.quarantine(graphed.keys[1], found_by="qualify", what="", where="")
    graphed.resize(sizes=(5, 8, 24))
    assert bucket_of(graphed, 7) == 24
    assert Reason.QUARANTINED in {r.reason for r in graphed.decide(LiveBatch(num_tokens=7)).alternatives}


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((8, 25), "25, and the static buffers hold 24"),
        ((2, 8), "ends at 8, and steps of up to 24 have graphs now"),
        ((0, 24), "positive integers"),
        ((), "positive integers"),
        (24, "several sizes"),
        ("24", "several sizes"),
        ((8.5, 24), "positive integers"),
    ],
)
def test_sizes_that_cannot_be(ready, sizes, words):
    graphed = ready(net, X, sizes=(8, 24))
    with pytest.raises(ConfigError, match=words):
        graphed.resize(sizes=sizes)
    assert sizes_of(graphed) == [24, 8]


def test_the_maximum_that_was_set_holds(ready):
    graphed = ready(net, X, sizes=(8, 16), max_size=20)
    with pytest.raises(ConfigError, match="21"):
        graphed.resize(sizes=(8, 21))
    graphed.resize(sizes=(8, 20))
    assert bucket_of(graphed, 20) == 20


def test_kinds_that_the_mode_has_not(ready):
    with pytest.raises(ConfigError, match="no graphs that decode_sizes would change"):
        ready(net, X, sizes=(8, 24)).resize(decode_sizes=(1, 2))
    with pytest.raises(ConfigError, match="no graphs that sizes would change"):
        ready(net, X, mode="none", sizes=(8, 24)).resize(sizes=(24,))


def test_out_of_order(ready):
    graphed = Graphed(net, example=(X,), config=GraphConfig(sizes=(8, 24)))
    with pytest.raises(RuntimeStateError, match=r"resize\(\) was called when the callable was planned"):
        graphed.resize(sizes=(5, 24))
    graphed.warm_up().capture()
    graphed.release()
    with pytest.raises(RuntimeStateError):
        graphed.resize(sizes=(5, 24))


def test_refused_inside_a_step_and_inside_a_capture(ready):
    caught = []

    def resize():
        with pytest.raises(RuntimeStateError) as error:
            graphed.resize(sizes=(5, 24))
        caught.append(str(error.value))

    class InStep:
        def emit(self, event):
            if type(event).__name__ == "StepDispatched":
                resize()

    graphed = ready(net, X, sizes=(8, 24), hooks={"sinks": [InStep()]})
    graphed(X[:3])
    assert "inside its own step" in caught.pop()

    def outer(x):
        resize()
        return x + 1

    ready(outer, X, sizes=(24,))
    assert caught and all("inside a capture" in text for text in caught)
    assert sizes_of(graphed) == [24, 8]


def test_an_old_decision_is_refused_by_name(ready):
    graphed = ready(net, X, sizes=(2, 8, 24))
    decision = graphed.decide(LiveBatch(num_tokens=2))
    graphed.resize(sizes=(8, 24))
    with pytest.raises(RuntimeStateError, match="there is no graph of FULL tokens=2"):
        graphed.run(decision)


def test_steps_of_other_threads_go_on(ready):
    graphed = ready(net, X, sizes=(2, 8, 24))
    failures, is_done, num_steps = [], threading.Event(), [0]

    def serve(offset):
        size = 1 + offset
        while not is_done.is_set():
            size = 1 + (size + 7) % 24
            try:
                if not torch.equal(graphed(X[:size]), net(X[:size])):
                    failures.append(f"{size} rows differ")
            except Exception as error:
                failures.append(repr(error))
            num_steps[0] += 1

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        graphed.resize(sizes=(3, 12, 24) if number % 2 else (2, 8, 24))
    is_done.set()
    for thread in threads:
        thread.join()
    assert failures == [] and num_steps[0] > 20


def test_the_suggestion_of_a_callable_can_be_applied(ready):
    graphed = ready(net, X, sizes=(8, 24))
    for _ in range(20):
        graphed(X[:3])
        graphed(X[:10])
    assert not graphed.suggest_sizes().has_changes
    suggestion = graphed.suggest_sizes(min_steps=40)
    assert suggestion.sizes == (10, 24) and suggestion.decode_sizes is None
    graphed.resize(sizes=suggestion.sizes, decode_sizes=suggestion.decode_sizes)
    graphed.counters.reset()
    for _ in range(20):
        graphed(X[:3])
        graphed(X[:10])
    assert not graphed.suggest_sizes(min_steps=40).has_changes
    assert_like_eager(graphed)


def test_who_looks_at_the_graphs_meanwhile_sees_those_that_there_were(ready):
    graphed = ready(net, X, sizes=(2, 8, 24))
    plans = graphed.plans
    before = list(plans)
    guards = iter(graphed._captured._guards.values())
    next(guards)
    graphed.resize(sizes=(3, 24))
    assert list(plans) == before and list(graphed.plans) != before
    assert len(list(guards)) == len(before) - 1
    plans = graphed.plans
    graphed.release()
    assert [key.num_tokens for key in plans] == [24, 3] and not graphed.plans


def test_a_step_that_waited_for_the_shadow_to_go_goes_on():
    class ClosesMeanwhile:
        def __enter__(self):
            qualifier.drop()

        def __exit__(self, *error):
            pass

    qualifier = Qualifier(None, lock=ClosesMeanwhile(), quarantine=None, on_shadow_failed=None)
    qualifier.shadow = Shadow(
        1,
        owner=None,
        wrapped=None,
        generators=None,
        is_bitwise=True,
        versions=lambda _key: [],
        counts=qualifier.shadow_counts,
        on_failed=None,
    )
    qualifier.finish_shadow()
    assert qualifier.shadow is None
