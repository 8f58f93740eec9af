"""The facade: life cycle, steps, fallbacks and their reasons, hooks, nesting, threads."""

import gc
import threading
import time

import pytest
import torch

from ostinato.errors import (
    AddressChangedError,
    BreakOutputError,
    CaptureError,
    CaptureNotAllowedError,
    ClosedError,
    ConfigError,
    HostSyncError,
    InputSpecError,
    RuntimeStateError,
)
from ostinato.runtime import (
    CaptureSupport,
    GraphConfig,
    Graphed,
    LiveBatch,
    Reason,
    RuntimeMode,
    Slot,
    graph_break,
)
from ostinato.runtime.breaks import is_recording
from ostinato.telemetry import CaptureFailed, GraphCaptured, KeysPlanned, MemorySink, ModeResolved, StepDispatched

X = torch.ones(4, 2)


def plus_one(x):
    return x + 1


# --- construction ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"example": (X,), "slots": {"x": Slot(shape=(None, 2), dtype=torch.float32)}}])
def test_example_or_slots(given):
    with pytest.raises(ConfigError, match=r"either example=.* or slots="):
        Graphed(plus_one, **given)


def test_slots_need_a_size():
    slots = {"x": Slot(shape=(None, 2), dtype=torch.float32)}
    with pytest.raises(ConfigError, match="largest size is unknown"):
        Graphed(plus_one, slots=slots)
    assert Graphed(plus_one, slots=slots, config=GraphConfig(max_size=4)).keys[0].num_tokens == 4


def test_slots_that_count_requests_need_their_number():
    slots = {"x": Slot(shape=(None, 2), dtype=torch.float32, axis="num_reqs")}
    with pytest.raises(ConfigError, match=r"slots \['x'\] count requests Fix: set GraphConfig\(max_num_reqs"):
        Graphed(plus_one, slots=slots, config=GraphConfig(sizes=(2, 4)))


def test_the_mode_is_resolved_and_told():
    sink = MemorySink()
    graphed = Graphed(plus_one, example=(X,), capture_support=CaptureSupport.NEVER, sinks=[sink])
    assert graphed.mode.mode == "piecewise"
    assert {key.runtime_mode for key in graphed.keys} == {RuntimeMode.PIECEWISE}
    assert [type(event) for event in sink.events] == [ModeResolved, KeysPlanned]


# --- life cycle ------------------------------------------------------------------------------------


def test_steps_out_of_order():
    graphed = Graphed(plus_one, example=(X,), config=GraphConfig(sizes=(4,)))
    with pytest.raises(RuntimeStateError, match=r"capture\(\) was called when the callable was planned"):
        graphed.capture()
    assert graphed.warm_up() is graphed
    graphed.warm_up()  # again is fine
    graphed.capture()
    for step in (graphed.capture, graphed.warm_up):
        with pytest.raises(RuntimeStateError, match="was captured"):
            step()


def test_calls_before_capture_run_eagerly_and_say_so():
    graphed = Graphed(plus_one, example=(X,), config=GraphConfig(sizes=(4,)))
    assert graphed(X).eq(2).all()
    assert graphed.counters.by_reason == {Reason.NOT_CAPTURED_YET: 1}


def test_close_is_idempotent_and_final(ready):
    with ready(plus_one, X, sizes=(4,)) as graphed:
        decision = graphed.decide(LiveBatch(num_tokens=4))
        plan = next(iter(graphed.plans.values()))
    graphed.close()
    assert plan.is_closed and not graphed.plans
    assert graphed.backend.memory().num_graphs == 0
    for use in (
        lambda: graphed(X),
        lambda: graphed(torch.ones(99, 2)),
        lambda: graphed.explain(X),
        lambda: graphed.run(decision),
        graphed.warm_up,
        graphed.capture,
    ):
        with pytest.raises(ClosedError):
            use()


def test_hooks_come_in_order():
    log = []

    def fn(x):
        log.append(("capture" if is_recording() else "run", x.shape[0]))
        return x + 1

    graphed = Graphed(
        fn,
        example=(X,),
        config=GraphConfig(sizes=(2, 4), warm_up_runs=2),
        prepare=lambda key: log.append(("prepare", key.num_tokens)),
        after_warm_up=lambda: log.append(("after", 0)),
    )
    done = []
    graphed.warm_up(on_key=done.append)
    graphed.capture(on_key=done.append)
    warm = [(what, size) for size in (4, 2, 4, 2) for what in ("prepare", "run")]
    captured = [(what, size) for size in (4, 2) for what in ("prepare", "capture")]
    assert log == [*warm, ("after", 0), *captured]
    assert done == graphed.keys * 2


def test_events_of_a_life():
    sink = MemorySink()
    with Graphed(plus_one, example=(X,), config=GraphConfig(sizes=(4,)), sinks=[sink]) as graphed:
        graphed.warm_up()
        graphed.capture()
        graphed(X)
    assert [type(event) for event in sink.events] == [ModeResolved, KeysPlanned, GraphCaptured, StepDispatched]
    assert (sink.events[2].segments, sink.events[2].nodes) == (1, 1)
    assert sink.events[1].keys == (sink.events[2].key,) == (sink.events[3].key,)


def test_a_sink_that_raises_harms_no_step(ready):
    class Broken:
        def emit(self, event):
            raise ZeroDivisionError

    graphed = ready(plus_one, X, sizes=(4,), hooks={"sinks": [Broken()]})
    assert graphed(X).eq(2).all()
    assert graphed.counters.steps == 1


def test_capture_outside_the_phase_is_refused(ready):
    graphed = ready(plus_one, X, sizes=(4,))
    with graphed.backend.session(), pytest.raises(CaptureNotAllowedError):
        graphed.backend.begin()
    assert graphed(X).eq(2).all()


# --- failures of capture ---------------------------------------------------------------------------


def test_one_failing_key_leaves_the_others():
    sink = MemorySink()

    def fails_on_four(x):
        if x.shape[0] == 4 and is_recording():
            raise IndexError("only at four")
        return x + 1

    config = GraphConfig(sizes=(2, 4, 8))
    with Graphed(fails_on_four, example=(torch.ones(8, 2),), config=config, sinks=[sink]) as graphed:
        graphed.warm_up()
        report = graphed.capture()
        assert [key.num_tokens for key in report.captured] == [8, 2]
        assert [(key.num_tokens, str(error)) for key, error in report.failed.items()] == [(4, "only at four")]
        assert [event.error for event in sink.events if isinstance(event, CaptureFailed)] == ["only at four"]
        decision = graphed.explain(torch.ones(3, 2))
        assert decision.key.num_tokens == 8
        assert decision.alternatives[0].reason is Reason.CAPTURE_FAILED
        assert graphed(torch.ones(3, 2)).eq(2).all()


@pytest.mark.parametrize("error", [HostSyncError("a"), ValueError("b")])
def test_capture_raises_when_no_key_works(error):
    def fails(x):
        if is_recording():
            raise error
        return x + 1

    with Graphed(fails, example=(X,), config=GraphConfig(sizes=(2, 4))) as graphed:
        graphed.warm_up()
        with pytest.raises(CaptureError) as caught:
            graphed.capture()
        assert error in (caught.value, caught.value.__cause__)
        assert graphed(X).eq(2).all()
        assert graphed.counters.by_reason == {Reason.CAPTURE_FAILED: 1}


# --- steps -----------------------------------------------------------------------------------------


def test_counters_and_reasons(ready):
    graphed = ready(plus_one, torch.ones(8, 2), sizes=(4, 8))
    for rows in (4, 3, 8, 9):
        assert torch.equal(graphed(torch.full((rows, 2), 3.0)), torch.full((rows, 2), 4.0))
    assert graphed.counters.by_reason == {"EXACT": 2, "PADDED": 1, "OVER_LARGEST": 1}
    assert graphed.counters.by_runtime_mode == {"FULL": 3, "EAGER": 1}
    assert (graphed.counters.live_tokens, graphed.counters.padded_tokens) == (24, 1)


def test_no_graphs_at_all(ready):
    graphed = ready(plus_one, X, mode="none")
    assert graphed.keys == []
    assert graphed(X).eq(2).all()
    assert graphed.counters.by_reason == {"DISABLED": 1}


def test_explain_runs_nothing(ready):
    calls = []

    @graph_break
    def count(h):
        calls.append(1)
        return h

    graphed = ready(lambda x: count(x + 1), torch.ones(8, 2), mode="piecewise", sizes=(4, 8))
    num_calls, steps = len(calls), graphed.counters.steps
    decision = graphed.explain(torch.ones(3, 2))
    assert (decision.key.num_tokens, decision.reason) == (4, Reason.PADDED)
    assert (len(calls), graphed.counters.steps) == (num_calls, steps)


def test_padding_beyond_the_limit(ready):
    graphed = ready(plus_one, torch.ones(8, 2), sizes=(8,), max_padding=2.0)
    assert graphed.explain(torch.ones(4, 2)).key is not None
    assert graphed.explain(torch.ones(3, 2)).reason is Reason.PADDING_COST
    assert graphed(torch.ones(3, 2)).shape == (3, 2)


def test_a_new_tensor_every_call_is_followed(ready):
    graphed = ready(plus_one, X, sizes=(4,))
    for value in (1.0, 2.0, 3.0):
        assert graphed(torch.full((4, 2), value)).eq(value + 1).all()


def test_copies_are_the_callers_and_views_are_the_graphs(ready):
    copies = ready(plus_one, X, sizes=(4,))
    first = copies(X)
    copies(X * 10)
    assert first.eq(2).all()
    views = ready(plus_one, X, sizes=(4,), outputs="view")
    first = views(X)
    assert first.eq(2).all()
    second = views(X * 10)
    assert first.unchecked().eq(11).all(), "a view holds until the next call"
    assert first.unchecked().data_ptr() == second.data_ptr()


def test_only_batch_major_outputs_are_sliced(ready):
    state = torch.arange(8.0).view(4, 2)

    def fn(x):
        return {"rows": x + 1, "state": state + 0, "sum": x.sum(), "name": "n", "none": None}

    graphed = ready(fn, torch.ones(8, 2), sizes=(2, 4, 8))
    for rows in (1, 3, 4):
        out = graphed(torch.ones(rows, 2))
        assert out["rows"].shape == (rows, 2)
        assert torch.equal(out["state"], state)
        assert out["sum"].item() == rows * 2, "padded rows are zero"
        assert (out["name"], out["none"]) == ("n", None)


def test_nested_inputs_and_keywords(ready):
    def fn(x, extra, *, scale, weights=None):
        return x * scale + extra["bias"][0] + weights

    def inputs(rows):
        return (torch.ones(rows, 2), {"bias": [torch.full((rows, 2), 5.0)]}), {
            "scale": 3.0,
            "weights": torch.tensor([10.0, 20.0]),
        }

    args, kwargs = inputs(4)
    graphed = ready(fn, *args, kwargs=kwargs, sizes=(2, 4))
    args, kwargs = inputs(3)
    assert graphed(*args, **kwargs).tolist() == [[18.0, 28.0]] * 3
    kwargs["weights"] = torch.tensor([1.0, 2.0])
    assert graphed(*args, weights=kwargs["weights"], scale=3.0).tolist() == [[9.0, 10.0]] * 3
    with pytest.raises(InputSpecError, match=r"argument .*scale.* is frozen"):
        graphed(*args, scale=4.0, weights=kwargs["weights"])
    assert graphed.counters.steps == 2


def test_a_fixed_index_input_is_safe_at_warm_up(ready):
    def fn(x, index, table):
        x.data.fill_(1e9)  # past the check of written arguments: what lies where another bucket has its index
        return x + table[index].sum()

    table = torch.arange(3.0)
    graphed = ready(fn, torch.ones(5, 16), torch.tensor([0, 1, 2]), table, sizes=(1, 2, 4, 5))
    assert graphed(torch.ones(2, 16), torch.tensor([2, 2, 1]), table).eq(1e9 + 5).all()


def test_graphs_and_fallbacks_alike_track_no_gradient(ready):
    graphed = ready(torch.nn.Linear(2, 2), X, sizes=(4,))
    assert not graphed(X).requires_grad
    assert not graphed(torch.ones(9, 2)).requires_grad


def test_a_broadcastable_input_is_refused(ready):
    graphed = ready(plus_one, X, sizes=(4,))
    with pytest.raises(InputSpecError, match="argument 'x' differs"):
        graphed(torch.ones(4, 1))


def test_moved_buffers_are_refused(ready):
    graphed = ready(plus_one, X, sizes=(4,))
    graphed.buffers.arena = graphed.buffers.arena.clone()
    with pytest.raises(AddressChangedError):
        graphed(X)


def test_a_break_that_changes_is_refused_and_the_next_step_is_right(ready):
    factor = {"dtype": torch.float32}

    @graph_break
    def convert(h):
        return h.to(factor["dtype"], copy=True)

    graphed = ready(lambda x: convert(x + 1) + 1, X, mode="piecewise", sizes=(4,))
    factor["dtype"] = torch.float64
    with pytest.raises(BreakOutputError, match="convert"):
        graphed(X)
    factor["dtype"] = torch.float32
    assert graphed(X).eq(3).all()


# --- decide and run: how an engine drives it -------------------------------------------------------

SLOTS = {
    "ids": Slot(shape=(None,), dtype=torch.int64),
    "lens": Slot(shape=(None,), dtype=torch.int32, axis="num_reqs"),
}


@pytest.fixture
def engine_like():
    config = GraphConfig(mode="full_and_piecewise", sizes=(4, 8), decode_sizes=(2, 4), max_num_reqs=4, kv_tiers=(8, 64))
    with Graphed(lambda ids, lens: (ids * 2, lens + 1), slots=SLOTS, config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        yield graphed


@pytest.mark.parametrize(
    ("live", "runtime_mode", "bucket"),
    [
        (LiveBatch(num_tokens=2, num_reqs=2, uniform_query_len=1, context_tokens=8), RuntimeMode.FULL, "2/8"),
        (LiveBatch(num_tokens=3, num_reqs=3, uniform_query_len=1, context_tokens=9), RuntimeMode.FULL, "4/64"),
        (LiveBatch(num_tokens=3, num_reqs=3, uniform_query_len=1, context_tokens=65), RuntimeMode.PIECEWISE, "4"),
        (LiveBatch(num_tokens=7, num_reqs=3, context_tokens=9), RuntimeMode.PIECEWISE, "8"),
        (LiveBatch(num_tokens=4, num_reqs=4, context_tokens=9), RuntimeMode.PIECEWISE, "4"),
    ],
)
def test_decide_and_run(engine_like, live, runtime_mode, bucket):
    decision = engine_like.decide(live)
    assert (decision.runtime_mode, decision.bucket) == (runtime_mode, bucket)
    staging = engine_like.staging()
    sizes = engine_like.sizes(decision)
    views = staging.open(sizes)
    views["ids"].copy_(torch.arange(sizes["num_tokens"]))
    views["lens"].fill_(5)
    staging.upload(sizes)
    ids, lens = engine_like.run(decision)
    assert ids[: live.num_tokens].tolist() == [2 * n for n in range(live.num_tokens)]
    assert lens[: live.num_reqs].tolist() == [6] * live.num_reqs
    assert engine_like.counters.by_runtime_mode == {runtime_mode: 1}


def test_run_falls_to_eager_on_the_live_rows(engine_like):
    decision = engine_like.decide(LiveBatch(num_tokens=3, num_reqs=2, variant="unplanned"))
    assert decision.reason is Reason.VARIANT
    views = engine_like.buffers.views(engine_like.sizes(decision))
    views["ids"].copy_(torch.tensor([1, 2, 3]))
    ids, lens = engine_like.run(decision)
    assert (ids.tolist(), lens.shape) == ([2, 4, 6], (2,))


def test_a_made_up_call_has_the_sizes_of_its_key_and_is_prepared():
    told = []
    config = GraphConfig(mode="piecewise", sizes=(4,), max_num_reqs=2)
    with Graphed(lambda ids, lens: ids, slots=SLOTS, config=config, prepare=told.append) as graphed:
        (key,) = graphed.keys
        (ids, lens), kwargs = graphed.made_up_call(key)
        assert (ids.shape, lens.shape, kwargs, told) == ((4,), (2,), {}, [key])
        assert not ids.any() and not lens.any()


def test_memory_has_owners(engine_like):
    owners = engine_like.memory().owners
    assert list(owners) == ["static buffers", "bridges", "graph pool"]
    assert owners["static buffers"] == engine_like.buffers.num_bytes > 0
    assert owners["graph pool"] > 0


# --- nesting and threads ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["piecewise", "full"])
def test_a_graphed_inside_anothers_capture_is_inlined(ready, mode):
    @graph_break
    def double(h):
        return h * 2

    @graph_break
    def recount(h):
        return torch.full((4, 2), 7.0)  # a state: never sliced nor cleared

    inner = ready(lambda x: double(x + 1), torch.ones(8, 2), mode="piecewise", sizes=(2, 4, 8))
    steps = inner.counters.steps
    outer = ready(lambda x: (inner(x) + 1, recount(x) + 0), torch.ones(8, 2), mode=mode, sizes=(2, 4, 8))
    assert inner.counters.steps == steps, "neither warm-up nor capture replays it"
    assert all(len(plan.breaks) == (2 if mode == "piecewise" else 0) for plan in outer.plans.values())
    rows, state = outer(torch.ones(3, 2))
    assert rows.tolist() == [[5.0, 5.0]] * 3
    assert state.eq(7.0).all()
    assert inner.counters.steps == steps


def test_a_graphed_inside_anothers_break_replays(ready):
    inner = ready(lambda x: x * 3, X, sizes=(4,))

    @graph_break
    def call_inner(h):
        return inner(h)

    outer = ready(lambda x: call_inner(x + 1) + 1, X, mode="piecewise", sizes=(4,))
    steps = inner.counters.steps
    assert outer(X).eq(7).all()
    assert inner.counters.by_runtime_mode["FULL"] == steps + 1


def test_concurrent_calls_do_not_mix(ready):
    @graph_break
    def pause(h):
        time.sleep(0)  # lets another thread in between two segments
        return h * 2

    graphed = ready(lambda x: pause(x + 1) + 1, torch.ones(8, 2), mode="piecewise", sizes=(2, 4, 8))
    wrong = []

    def work(seed):
        for step in range(40):
            rows, value = 1 + (seed + step) % 9, float(seed * 100 + step)
            out = graphed(torch.full((rows, 2), value))
            if out.shape != (rows, 2) or not out.eq(value * 2 + 3).all():
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert graphed.counters.steps == 160


def test_callables_capture_side_by_side(ready):
    made = {}

    def work(name):
        with Graphed(lambda x: x + name, example=(X,), config=GraphConfig(sizes=(2, 4))) as graphed:
            graphed.warm_up()
            graphed.capture()
            made[name] = graphed(X).eq(1 + name).all().item()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == {0: True, 1: True, 2: True}
    assert gc.isenabled()


@pytest.mark.parametrize(
    "fn", [lambda x: torch.cat([x, x]), lambda x: (x + 1).reshape(-1), lambda x: (x + 1).t()], ids=["cat", "flat", "t"]
)
@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_a_result_that_cannot_be_cut_to_the_live_rows_is_refused(fn, mode):
    graphed = Graphed(fn, example=(torch.ones(8, 4),), config=GraphConfig(mode=mode, sizes=(2, 4, 8)))
    with graphed, pytest.raises(ConfigError, match="output 0 follows the batch"):
        graphed.warm_up()


def test_a_callable_that_writes_into_its_argument_is_refused():
    graphed = Graphed(lambda x: x.add_(1), example=(torch.ones(4, 4),), config=GraphConfig(sizes=(2, 4)))
    with graphed, pytest.raises(InputSpecError, match="writes into its arguments"):
        graphed.warm_up()


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        ((3,), {"example": (torch.ones(2, 2),)}, "cannot be called"),
        ((torch.nn.ReLU(),), {"example": torch.ones(2, 2)}, "example is a Tensor"),
        ((torch.nn.ReLU(),), {"example": (torch.ones(2, 2),), "config": {"mode": "full"}}, "config is a dict"),
        (
            (torch.nn.ReLU(),),
            {"example": (torch.ones(2, 2),), "config": GraphConfig(sizes=(3, 5), size_multiple=4)},
            "no size is left",
        ),
        (
            (torch.nn.ReLU(),),
            {"example": (torch.ones(2, 2),), "config": GraphConfig(sizes=(10**15,))},
            "cannot be allocated",
        ),
    ],
)
def test_slips_of_a_newcomer_are_told(arguments, settings, words):
    with pytest.raises(ConfigError, match=words):
        Graphed(*arguments, **settings)
