"""`on_moved="recapture"`: a step whose graph reads what has moved runs eagerly, and its key is captured anew."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato.errors import (
    AddressChangedError,
    ConfigError,
    RuntimeStateError,
    StaleOutputError,
    TensorReboundError,
    UnknownNameError,
)
from ostinato.runtime import GraphConfig, Graphed, LiveBatch, Reason, RuntimeMode, graph_break
from ostinato.telemetry import CaptureFailed, GraphCaptured, GraphClosed, MemorySink, TensorMoved

WIDTH = 4
X = torch.arange(8.0 * WIDTH).view(8, WIDTH)


@graph_break
def attend(x):
    return x + 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.table = torch.ones(WIDTH)
        self.register_buffer("state", torch.zeros(WIDTH))

    def forward(self, x):
        x = attend(self.linear(x)) * 2 + self.table
        self.state += 1
        return x

    def expected(self, x):
        """As `forward`, and the state stays."""
        return (self.linear(x) + 1) * 2 + self.table


class Small(Model):
    """Reads its table at 2 rows alone."""

    def forward(self, x):
        return self.linear(x) + self.table if x.shape[0] == 2 else self.linear(x)

    def expected(self, x):
        return self.linear(x) + self.table if x.shape[0] == 2 else self.linear(x)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def sink():
    return MemorySink()


@pytest.fixture
def captured(sink):
    made = []

    def make(fn, **settings):
        config = GraphConfig(**({"mode": "piecewise", "sizes": (2, 8), "on_moved": "recapture"} | settings))
        graphed = Graphed(fn, example=(X,), config=config, sinks=[sink])
        made.append(graphed)
        graphed.warm_up().capture()
        sink.events.clear()
        return graphed

    yield make
    for graphed in made:
        graphed.close()


def of(sink, kind):
    return [event for event in sink.events if isinstance(event, kind)]


def rebind_weight(model):
    model.linear.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


def rebind_table(model):
    model.table = torch.randn(WIDTH)


def move_data(model):
    model.linear.bias.data = torch.randn(WIDTH)


def replace_layer(model):
    model.linear = nn.Linear(WIDTH, WIDTH)


@pytest.mark.parametrize("partition", ["breakable", "fx"])
@pytest.mark.parametrize("change", [rebind_weight, rebind_table, replace_layer])
def test_the_very_next_step_is_right_and_the_one_after_it_replays(change, partition, captured, sink):
    model = Model()
    graphed = captured(model, partition=partition)
    graphed(X)
    change(model)
    assert torch.equal(graphed(X), model.expected(X))
    assert graphed.counters.by_runtime_mode == {"PIECEWISE": 1, "EAGER": 1}
    assert graphed.counters.by_reason == {"EXACT": 1, "MOVED": 1}
    for _ in range(3):
        assert torch.equal(graphed(X), model.expected(X))
    assert graphed.counters.by_runtime_mode == {"PIECEWISE": 4, "EAGER": 1}
    assert [event.key for event in of(sink, GraphCaptured)] == ["PIECEWISE tokens=8"], "the other is not wanted yet"


def test_in_full_graphs_and_at_every_level(captured):
    for settings in ({"mode": "full"}, {"guards": "sampled"}):
        model = Model()
        graphed = captured(model, **settings)
        rebind_weight(model)
        for _ in range(3):
            assert torch.equal(graphed(X), model.expected(X))
        assert graphed.counters.by_reason == {"MOVED": 1, "EXACT": 2}


def test_what_is_looked_at_in_rotation(captured):
    """Seen at its turn: from then on all is right."""
    model = Model()
    graphed = captured(model, sizes=(8,))
    move_data(model)
    while not graphed.counters.by_reason["MOVED"]:
        graphed(X)
    for _ in range(3):
        assert torch.equal(graphed(X), model.expected(X))
    assert graphed.counters.by_reason["MOVED"] == 1


def test_it_is_told_with_the_tensor_the_segment_and_the_time(captured, sink, caplog):
    model = Model()
    graphed = captured(model, sizes=(8,))
    graphed(X)
    rebind_table(model)
    graphed(X)
    (event,) = of(sink, TensorMoved)
    assert event.key == "PIECEWISE tokens=8"
    assert "table is another tensor" in event.what and "segment=1" in event.what
    assert "between check 1 and check 2" in event.what
    assert [closed.reason for closed in of(sink, GraphClosed)] == ["moved"]
    assert graphed.counters.key_states == {event.key: "waiting"}
    assert "tokens=8 is captured anew before it is used again: [OST306] table" in caplog.text
    assert graphed.explain(X).reason is Reason.MOVED and graphed.explain(X).runtime_mode is RuntimeMode.EAGER
    graphed(X)
    assert graphed.counters.key_states == {event.key: "captured"}


def test_every_key_that_reads_it_goes_and_each_comes_back_when_it_is_wanted(captured, sink):
    model = Model()
    graphed = captured(model)
    rebind_weight(model)
    graphed(X)
    assert not graphed.plans and len(graphed.pending) == 2
    assert torch.equal(graphed(X[:2]), model.expected(X[:2]))
    assert [event.key for event in of(sink, GraphCaptured)] == ["PIECEWISE tokens=2"]
    assert torch.equal(graphed(X[:5]), model.expected(X[:5]))
    assert [event.key for event in of(sink, GraphCaptured)] == ["PIECEWISE tokens=2", "PIECEWISE tokens=8"]
    assert graphed.counters.by_reason == {"MOVED": 1, "EXACT": 1, "PADDED": 1}
    assert [key.num_tokens for key in graphed.plans] == [8, 2]


def test_a_key_beside_it_is_unharmed(captured, sink):
    model = Small()
    graphed = captured(model)
    beside = graphed.plans[graphed.keys[0]]
    rebind_table(model)
    assert torch.equal(graphed(X), model.expected(X))
    assert torch.equal(graphed(X[:2]), model.expected(X[:2]))  # finds it
    assert torch.equal(graphed(X), model.expected(X))
    assert torch.equal(graphed(X[:2]), model.expected(X[:2]))  # captures anew
    assert torch.equal(graphed(X), model.expected(X))
    assert graphed.plans[graphed.keys[0]] is beside
    assert graphed.counters.by_reason == {"EXACT": 4, "MOVED": 1}
    assert [event.key for event in of(sink, GraphCaptured)] == ["PIECEWISE tokens=2"]


def test_a_larger_bucket_that_is_right_does_not_keep_the_key_out(captured):
    model = Small()
    graphed = captured(model)
    rebind_table(model)
    graphed(X[:2])
    assert graphed.explain(X[:2]).bucket == "8", "what a step would do until then"
    graphed(X[:2])
    assert graphed.explain(X[:2]).bucket == "2"


def test_a_step_on_the_buffers_runs_on_what_stands_in_them(captured):
    """As an engine does it: inputs at the padded sizes, and no capture before it has read its outputs."""
    model = Model()
    graphed = captured(model, sizes=(8,))
    rebind_weight(model)
    decision = graphed.decide(LiveBatch(num_tokens=3))
    (slot,) = graphed.buffers.views(graphed.sizes(decision)).values()
    slot.zero_()
    slot[:3] = X[:3]
    torch.testing.assert_close(graphed.run(decision), model.expected(X[:3]))  # padded, so other bits
    assert torch.equal(slot[:3], X[:3])
    (row,) = graphed.counters.buckets.values()
    assert (row.runtime_mode, row.reason, row.padded_tokens) == ("EAGER", "MOVED", 5)
    assert [key.num_tokens for key in graphed.pending] == [8]
    graphed.capture_late()
    decision = graphed.decide(LiveBatch(num_tokens=3))
    slot[:3] = X[:3]
    assert decision.key is not None
    torch.testing.assert_close(graphed.run(decision), model.expected(X[:3]))


def test_state_is_as_if_nothing_had_been_captured(captured):
    model = Model()
    graphed = captured(model, sizes=(8,))
    model.state.zero_()
    rebind_weight(model)
    for count in range(1, 5):
        graphed(X)
        assert model.state.tolist() == [float(count)] * WIDTH


def test_state_that_is_rebound_itself(captured):
    model = Model()
    graphed = captured(model, sizes=(8,))
    model.state = torch.zeros(WIDTH)
    for count in range(1, 4):
        graphed(X)
        assert model.state.tolist() == [float(count)] * WIDTH


def test_a_recapture_that_fails_leaves_the_key_eager(captured, sink):
    class Fragile(Model):
        is_broken = False

        def forward(self, x):
            x = super().forward(x)
            return x * float(x.sum().item() != 0) if self.is_broken else x

    model = Fragile()
    graphed = captured(model, sizes=(8,))
    model.is_broken = True
    rebind_weight(model)
    for _ in range(4):
        assert torch.equal(graphed(X), model.expected(X))
    assert graphed.counters.by_reason == {"MOVED": 1, "CAPTURE_FAILED": 3}
    (failed,) = of(sink, CaptureFailed)
    assert "item" in failed.error and graphed.why_blocked(graphed.keys[0]) is Reason.CAPTURE_FAILED


def test_a_hook_that_fails_loses_no_step(sink):
    model, hooks = Model(), []

    def after_warm_up():
        if hooks:
            raise ValueError("cannot be undone")

    config = GraphConfig(mode="full", sizes=(8,), on_moved="recapture")
    with Graphed(model, example=(X,), config=config, after_warm_up=after_warm_up, sinks=[sink]) as graphed:
        graphed.warm_up().capture()
        hooks.append("fails")
        rebind_weight(model)
        for _ in range(3):
            assert torch.equal(graphed(X), model.expected(X))
        assert graphed.counters.by_reason == {"MOVED": 1, "CAPTURE_FAILED": 2}
        assert [event.error for event in of(sink, CaptureFailed)] == ["cannot be undone"]


def test_while_another_thread_captures_the_step_runs_eagerly(captured):
    model = Model()
    graphed = captured(model, sizes=(8,))
    rebind_weight(model)
    graphed(X)
    is_open, may_close = threading.Event(), threading.Event()

    def hold():
        with graphed.backend.phase():
            is_open.set()
            may_close.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    is_open.wait(10)
    try:
        assert torch.equal(graphed(X), model.expected(X))
    finally:
        may_close.set()
        thread.join()
    assert graphed.counters.by_reason == {"MOVED": 2}
    assert torch.equal(graphed(X), model.expected(X))
    assert graphed.counters.by_reason == {"MOVED": 2, "EXACT": 1}


def test_many_threads(captured):
    model = Model()
    graphed = captured(model)
    rebind_weight(model)
    expected = {rows: model.expected(X[:rows]) for rows in (1, 2, 5, 8)}
    faults = []

    def steps():
        with torch.no_grad():
            for rows in (8, 2, 5, 1) * 3:
                if not torch.equal(graphed(X[:rows]), expected[rows]):
                    faults.append(rows)

    threads = [threading.Thread(target=steps) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and graphed.counters.steps == 48 and len(graphed.plans) == 2
    assert graphed.explain(X).key is not None


def test_a_dropped_tensor_of_another_key_is_not_forgotten(captured):
    """A capture counts owners anew; what was dropped before it must be seen before it."""
    deep = {2: [[torch.ones(WIDTH)]], 8: [[torch.ones(WIDTH)]]}  # too deep for a name

    class Lookup:
        def __init__(self):
            self.tables = [deep]

        def __call__(self, x):
            return x + self.tables[0][x.shape[0]][0][0]

    graphed = captured(Lookup(), mode="full")
    deep[2][0][0], deep[8][0][0] = torch.full((WIDTH,), 2.0), torch.full((WIDTH,), 3.0)
    gc.collect()
    for _ in range(3):
        assert torch.equal(graphed(X), X + 3)
    for _ in range(3):
        assert torch.equal(graphed(X[:2]), X[:2] + 2)
    assert graphed.counters.by_reason == {"MOVED": 1, "EXACT": 5}


def test_what_is_dropped_between_the_step_and_the_capture_is_seen_too(captured):
    deep = {2: [[torch.ones(WIDTH)]], 8: [[torch.ones(WIDTH)]]}

    class Lookup:
        def __init__(self):
            self.tables = [deep]

        def __call__(self, x):
            return x + self.tables[0][x.shape[0]][0][0]

    graphed = captured(Lookup(), mode="full")
    deep[8][0][0] = torch.full((WIDTH,), 3.0)
    gc.collect()
    graphed(X)
    deep[2][0][0] = torch.full((WIDTH,), 2.0)
    gc.collect()
    assert torch.equal(graphed(X), X + 3)  # captures, and counts owners
    assert torch.equal(graphed(X[:2]), X[:2] + 2)


def test_a_view_that_dies_beside_a_withdrawn_key_is_no_fault(captured):
    """Both keys hold the memory; one holder less is not taken for the owner that went."""
    whole, table = torch.ones(2 * WIDTH), [torch.ones(WIDTH)]

    class Views:
        def __init__(self):
            self.inner = SimpleNamespace(part=whole[:WIDTH])

        def __call__(self, x):
            x = x + self.inner.part
            return x + table[0] if x.shape[0] == 2 else x

    views = Views()
    graphed = captured(views, mode="full")
    table[0] = torch.zeros(WIDTH)
    assert torch.equal(graphed(X[:2]), X[:2] + 1)
    views.inner.part = whole[:WIDTH]
    gc.collect()
    assert torch.equal(graphed(X), X + 1)
    assert graphed.counters.by_reason == {"MOVED": 1, "EXACT": 1}


def test_it_moves_again_and_again(captured):
    model = Model()
    graphed = captured(model, sizes=(8,))
    for _ in range(3):
        rebind_weight(model)
        for _ in range(2):
            assert torch.equal(graphed(X), model.expected(X))
    assert graphed.counters.by_reason == {"MOVED": 3, "EXACT": 3}


def test_lent_outputs_say_that_they_are_over(captured):
    model = Model()
    graphed = captured(model, sizes=(8,), outputs="view")
    lent = graphed(X)
    rebind_weight(model)
    graphed(X)
    graphed(X)
    with pytest.raises(StaleOutputError):
        lent.sum()


def test_the_shadow_holds_no_move_against_the_key(captured):
    model = Model()
    graphed = captured(model, sizes=(8,), shadow_every=1)
    for _ in range(3):
        graphed(X)
        rebind_weight(model)
    for _ in range(3):
        assert torch.equal(graphed(X), model.expected(X))
    assert graphed.explain(X).key is not None, "it is not quarantined"


def test_what_has_moved_is_neither_qualified_nor_measured(captured):
    model = Small()
    graphed = captured(model, mode="full")
    rebind_table(model)
    report = graphed.qualify()
    assert report.passed and [key.key.num_tokens for key in report.keys] == [8], "and nothing is quarantined"
    assert [key.num_tokens for key in graphed.pending] == [2]
    rebind_weight(model)
    with pytest.raises(RuntimeStateError, match="all 2 keys wait for their capture") as caught:
        graphed.measure(budget_seconds=0.01)
    assert "capture_late()" in caught.value.fix
    assert not graphed.capture_late().failed
    assert {sample.size for sample in graphed.measure(budget_seconds=0.01).samples} == {2, 8}
    assert not graphed.pending


def test_a_quarantine_outlives_a_move(captured):
    model = Model()
    graphed = captured(model, sizes=(8,))
    graphed._dispatcher.quarantine(graphed.keys[0], found_by="qualify", what="differs", where="")
    rebind_weight(model)
    graphed.resize(sizes=(4, 8))  # looks at everything
    assert graphed.why_blocked(graphed.keys[0]) is Reason.QUARANTINED
    assert torch.equal(graphed(X), model.expected(X)) and graphed.counters.by_reason == {"QUARANTINED": 1}


def test_late_captures_go_on_without_what_moved(captured):
    model = Model()
    graphed = captured(model)
    rebind_weight(model)
    graphed.resize(sizes=(2, 4, 8))
    assert [key.num_tokens for key in graphed.pending] == [8, 2]
    for rows in (2, 4, 8):
        assert torch.equal(graphed(X[:rows]), model.expected(X[:rows]))
    assert graphed.counters.by_runtime_mode == {"PIECEWISE": 3}


def test_recapture_and_release_take_over(captured):
    model = Model()
    graphed = captured(model)
    rebind_weight(model)
    graphed(X)
    graphed.release()
    assert graphed.explain(X).reason is Reason.NOT_CAPTURED_YET
    graphed.recapture()
    assert torch.equal(graphed(X), model.expected(X)) and len(graphed.plans) == 2


def test_a_look_at_everything_still_raises(captured):
    model = Model()
    graphed = captured(model)
    rebind_weight(model)
    with pytest.raises(TensorReboundError):
        graphed.check_guards()


def test_a_static_buffer_that_moved_is_nobody_elses_to_mend(captured):
    graphed = captured(Model())
    graphed.buffers.arena.data = torch.zeros_like(graphed.buffers.arena)
    with pytest.raises(AddressChangedError):
        graphed(X)


def test_raising_is_the_default(captured):
    assert GraphConfig().on_moved == "raise"
    model = Model()
    graphed = captured(model, on_moved="raise", failures_to_quarantine=0)
    rebind_weight(model)
    for _ in range(3):
        with pytest.raises(TensorReboundError, match=r"linear\.weight"):
            graphed(X)
    assert graphed.counters.steps == 0


def test_from_inside_its_own_step(captured):
    calls = []

    class Nested(Model):
        def forward(self, x):
            while calls:
                calls.pop()(x)
            return super().forward(x)

    model = Nested()
    graphed = captured(model, sizes=(8,), mode="full")
    rebind_weight(model)
    graphed(X)
    calls.append(graphed)  # inlined: the made-up runs of a capture are no steps
    assert torch.equal(graphed(X), model.expected(X)) and not calls


def test_bad_settings():
    with pytest.raises(UnknownNameError, match="recapture"):
        GraphConfig(on_moved="recaptur")
    with pytest.raises(ConfigError, match="guards are off"):
        GraphConfig(on_moved="recapture", guards="off")


def test_after_close(captured):
    model = Model()
    graphed = captured(model)
    rebind_weight(model)
    graphed(X)
    graphed.close()
    with pytest.raises(RuntimeStateError):
        graphed(X)
