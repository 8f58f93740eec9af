"""`Graphed.measure`: times every way, decides by them, and leaves everything else as it was."""

import itertools

import pytest
import torch

from ostinato.errors import ClosedError, ConfigError, RuntimeStateError
from ostinato.runtime import (
    BatchKind,
    CostSample,
    CostTable,
    GraphConfig,
    Graphed,
    LiveBatch,
    Reason,
    RuntimeMode,
    Slot,
    graph_break,
    read_costs,
    write_costs,
)
from ostinato.runtime.steps import LiveSteps
from ostinato.telemetry import MemorySink, StepDispatched

X = torch.ones(8, 2)


class Clock:
    """Seconds that only the callable and its replays move: eager steps by ``eager``, replays by ``replay``."""

    def __init__(self, monkeypatch, *, eager, replay):
        self.now = 0.0
        self.ways = []
        original = LiveSteps.copied

        def copied(steps, args, kwargs, decision=None):
            self.ways.append((decision.runtime_mode.value, decision.padded_tokens))
            self.now += (eager if decision.key is None else replay)(decision.padded_tokens)
            return original(steps, args, kwargs, decision)

        monkeypatch.setattr(LiveSteps, "copied", copied)

    def __call__(self):
        return self.now


def test_the_cheapest_way_by_a_scripted_clock(ready, monkeypatch):
    """Replays are free of launches and pay for padding: 3 rows in the bucket of 4 pay, 5 rows in that of 8 do not."""
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4, 8))
    with monkeypatch.context() as patch:
        clock = Clock(patch, eager=lambda n: 4e-3 + n * 1e-3, replay=lambda n: n * 1.25e-3)
        table = graphed.measure(clock=clock)
    assert set(clock.ways) == {("FULL", 4), ("FULL", 8), ("EAGER", 4), ("EAGER", 8)}
    assert graphed.costs is table
    key = {key.num_tokens: key for key in graphed.keys}
    live = {n: LiveBatch(num_tokens=n) for n in range(1, 9)}
    assert table.cost_ms(live[4], key[4]) == pytest.approx(5.0)
    assert table.cost_ms(live[5], key[8]) == pytest.approx(10.0)
    assert table.cost_ms(live[6], None) == pytest.approx(10.0)
    decisions = {n: graphed.explain(torch.ones(n, 2)) for n in live}
    assert [decisions[n].key and decisions[n].key.num_tokens for n in live] == [4, 4, 4, 4, None, 8, 8, 8]
    assert decisions[5].reason is Reason.MEASURED_SLOWER
    assert graphed(torch.ones(5, 2)).eq(2).all() and graphed(torch.ones(7, 2)).eq(2).all()
    assert graphed.counters.by_reason == {"MEASURED_SLOWER": 1, "PADDED": 1}
    graphed.use_costs(None)
    assert graphed.explain(torch.ones(5, 2)).key == key[8]


def test_a_real_clock_measures_every_way(ready):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(1, 2, 4, 8))
    table = graphed.measure(budget_seconds=0.02)
    assert {(s.way, s.size) for s in table.samples} == {(w, n) for w in ("eager", "full graph") for n in (1, 2, 4, 8)}
    assert all(0 < s.ms < 1000 and s.spread >= 0 for s in table.samples)
    for n in range(1, 9):
        decision = graphed.explain(torch.ones(n, 2))
        costs = [decision.cost_ms, *(r.cost_ms for r in decision.alternatives if r.cost_ms is not None)]
        assert decision.cost_ms <= 1.03 * min(costs)


class Counts(torch.nn.Module):
    """Writes into its own state at each step, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(1.0)
        return stretch(x + 0 * torch.rand(2)) + self.seen[0]


@graph_break
def stretch(x):
    return x * 2


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_everything_is_as_before(mode):
    sink, module = MemorySink(), Counts()
    config = GraphConfig(mode=mode, sizes=(4, 8))
    with Graphed(module, example=(X,), config=config, state=module, sinks=[sink]) as graphed:
        graphed.warm_up().capture()
        graphed(torch.ones(3, 2))
        seen, arena = module.seen.clone(), graphed.buffers.arena.clone()
        counted, events, random = graphed.counters.snapshot(), len(sink.events), torch.get_rng_state()
        graphed.measure(budget_seconds=0.01)
        assert torch.equal(module.seen, seen) and torch.equal(graphed.buffers.arena, arena)
        assert torch.equal(torch.get_rng_state(), random)
        assert graphed.counters.snapshot() == counted and len(sink.events) == events, "measuring is nobody's step"
        graphed.use_costs(None)
        assert graphed(torch.ones(3, 2)).eq(2 + seen[0] + 1).all()
        assert [type(event) for event in list(sink.events)[events:]] == [StepDispatched]


def test_a_step_that_fails_leaves_state_and_choice_as_they_were():
    module = Counts()
    with Graphed(module, example=(X,), config=GraphConfig(mode="full", sizes=(4,)), state=module) as graphed:
        graphed.warm_up().capture()
        seen = module.seen.clone()

        def fails():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            graphed.measure(on_step=fails)
        assert torch.equal(module.seen, seen) and graphed.costs is None
        graphed(torch.ones(3, 2))
        assert graphed.counters.steps == 1, "steps are counted again"


def test_the_shadow_looks_at_no_measured_step(ready):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4,), shadow_every=1)
    shadow = graphed._qualifier.shadow
    graphed.measure(budget_seconds=0.01)
    assert graphed._qualifier.shadow is shadow and graphed.shadow_counts.num_compared == 0
    graphed.finish_shadow()
    assert graphed.shadow_counts.num_compared == 0


def test_a_quarantined_key_is_not_measured(ready):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4, 8))
    key = next(key for key in graphed.keys if key.num_tokens == 4)
    graphed._dispatcher.quarantine(key, found_by="test", what="planted", where="")
    assert {s.size for s in graphed.measure(budget_seconds=0.01).samples} == {8}


def prepared(fn, told, **config):
    slots = {
        "x": Slot(shape=(None, 2), dtype=torch.float32),
        "lens": Slot(shape=(None,), dtype=torch.int32, axis="num_reqs"),
    }
    settings = {"mode": "full_and_piecewise", "sizes": (4, 8), "decode_sizes": (2, 4), "max_num_reqs": 4, **config}
    return Graphed(fn, slots=slots, config=GraphConfig(**settings), prepare=told)


def test_a_callable_with_metadata_runs_on_its_buffers_at_the_sizes_of_its_keys():
    keys, rows = [], []

    def fn(x, lens):
        rows.append((x.shape[0], lens.shape[0]))
        return x * 2

    with prepared(fn, keys.append) as graphed:
        graphed.warm_up().capture()
        keys.clear()
        rows.clear()
        table = graphed.measure(budget_seconds=0.01)
        found = {(str(s.kind), s.way, s.size) for s in table.samples}
        assert found == {
            *(("decode", way, n) for way in ("eager", "full decode graph") for n in (2, 4)),
            *(("mixed", way, n) for way in ("eager", "piecewise graph") for n in (4, 8)),
        }
        assert set(keys) == set(graphed.keys), "metadata was made for each"
        assert set(rows) == {(2, 2), (4, 4), (8, 4)}, "eager runs have the sizes that the metadata fits"


def test_requests_without_metadata():
    with prepared(lambda x, lens: x * 2, None) as graphed:
        graphed.warm_up().capture()
        table = graphed.measure(budget_seconds=0.01)
        decode = BatchKind(uniform_query_len=1)
        ways = {(s.way, s.size) for s in table.samples if s.kind == decode}
        assert ways == {
            *(("full decode graph", n) for n in (2, 4)),
            *(("piecewise graph", n) for n in (4, 8)),  # that of 8 holds no more requests, and might be faster
            *(("eager", n) for n in (2, 4)),
        }
        live = LiveBatch(num_tokens=3, num_reqs=3, uniform_query_len=1)
        assert graphed.decide(live).cost_ms is not None


def test_no_sizes_at_all_are_a_mistake_and_harm_no_costs(ready):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4,))
    table = graphed.measure(budget_seconds=0.01)
    with pytest.raises(ConfigError, match="sizes is"):
        graphed.measure(sizes=())
    assert graphed.costs is table


def test_costs_outlive_a_recapture(ready):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4,))
    table = graphed.measure(budget_seconds=0.01)
    graphed.recapture()
    assert graphed.costs is table


def test_without_graphs_there_is_nothing_to_measure():
    with Graphed(lambda x: x * 2, example=(X,), config=GraphConfig(mode="none")) as graphed:
        graphed.warm_up()
        assert graphed.measure().samples == ()


def test_out_of_order_and_bad_budgets(ready):
    with Graphed(lambda x: x * 2, example=(X,), config=GraphConfig(sizes=(4,))) as graphed:
        with pytest.raises(RuntimeStateError, match="measure"):
            graphed.measure()
        for costs in ([], "costs.json"):
            with pytest.raises(ConfigError, match="costs is a"):
                graphed.use_costs(costs)
            with pytest.raises(ConfigError, match="costs is a"):
                graphed.unmeasured(costs)
        for budget in (0, -1.0, float("nan"), float("inf"), "1", None):
            with pytest.raises(ConfigError, match="budget_seconds"):
                graphed.measure(budget_seconds=budget)
    with pytest.raises(ClosedError):
        graphed.use_costs(None)


def test_a_table_of_ones_own():
    table = CostTable((CostSample(kind=BatchKind(), way="eager", size=1, ms=1.0),))
    with Graphed(lambda x: x * 2, example=(X,), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up().capture()
        graphed.use_costs(table)
        assert graphed.explain(torch.ones(2, 2)).runtime_mode is RuntimeMode.FULL, "graphs were not measured"


@pytest.mark.parametrize("overlap", [None, 1, "yes"])
def test_overlap_is_true_or_false(ready, overlap):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4,))
    with pytest.raises(ConfigError, match="overlap is"):
        graphed.measure(overlap=overlap, budget_seconds=0.01)
    assert graphed.costs is None


@pytest.mark.parametrize("overlap", [True, False])
def test_on_a_cpu_nothing_overlaps_and_the_clock_is_the_callers(ready, monkeypatch, overlap):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4,))
    with monkeypatch.context() as patch:
        clock = Clock(patch, eager=lambda n: 4e-3, replay=lambda n: 2e-3)
        table = graphed.measure(overlap=overlap, budget_seconds=1e-6, clock=clock)
    assert {sample.way: sample.ms for sample in table.samples} == {"eager": 4.0, "full graph": 2.0}
    assert len(clock.ways) == 9 * 2, "each run counts"


@pytest.mark.parametrize(("overlap", "expected"), [(None, True), (True, True), (False, False)])
def test_on_cuda_steps_are_timed_in_a_row_unless_they_are_waited_for(ready, monkeypatch, overlap, expected):
    """What is asked of `Turns` for a device that only says that it is one."""
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4,))
    asked = []

    class Asked(Exception):
        pass

    def turns(device, *, overlap, clock):
        asked.append((device.device.type, overlap))
        raise Asked

    monkeypatch.setattr("ostinato.runtime.steps.measuring.Turns", turns)
    monkeypatch.setattr(graphed._measuring.runs.wrapped, "device", torch.device("cuda"))
    with pytest.raises(Asked):
        graphed.measure(**({} if overlap is None else {"overlap": overlap}))
    assert asked == [("cuda", expected)]


@pytest.mark.parametrize("sizes", [(3,), (4, 3), "4", 4])
def test_sizes_that_are_no_buckets(ready, sizes):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4, 8))
    with pytest.raises(ConfigError, match=r"sizes is .*captured: \[4, 8\]"):
        graphed.measure(sizes=sizes, budget_seconds=0.01)
    assert graphed.costs is None


def test_a_file_keeps_what_was_measured_to_the_last_digit(ready, tmp_path):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(4, 8))
    thirds = iter(n / 30_000 + n * n / 7e9 for n in range(100_000))
    table = graphed.measure(budget_seconds=0.01, clock=lambda: next(thirds))
    write_costs(tmp_path / "costs.json", {"breakable": table}, origin={})
    found = read_costs(tmp_path / "costs.json", origin={})["breakable"]
    assert sorted(map(str, found.samples)) == sorted(map(str, table.samples))
    for rows in range(1, 9):
        live = LiveBatch(num_tokens=rows)
        assert found.cost_ms(live, None) == table.cost_ms(live, None)


def test_keys_without_a_cost_of_their_own(ready):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(2, 4, 8))
    table = graphed.measure(sizes=(2, 8), budget_seconds=0.01)
    assert [key.num_tokens for key in graphed.unmeasured(table)] == [4]
    assert [key.num_tokens for key in graphed.unmeasured(CostTable())] == [2, 4, 8]
    assert graphed.unmeasured(graphed.measure(budget_seconds=0.01)) == []


def test_keys_that_are_still_to_come_count_and_those_that_failed_do_not():
    config = GraphConfig(mode="full", sizes=(2, 4, 8))
    with Graphed(lambda x: x * 2, example=(X,), config=config) as graphed:
        graphed.defer_capture()
        graphed.leave_out({graphed.keys[0]: Reason.CAPTURE_FAILED}, why="a test")
        assert [key.num_tokens for key in graphed.unmeasured(CostTable())] == [2, 4]


def test_eager_is_not_timed_at_sizes_that_a_hook_does_not_know():
    """Its metadata are for keys: between two of them there are none."""
    prepared = []
    config = GraphConfig(mode="full", sizes=(64, 256))
    example = (torch.ones(256, 2),)
    with Graphed(lambda x: x * 2, example=example, config=config, prepare=prepared.append) as graphed:
        graphed.warm_up().capture()
        clock = itertools.count()  # all steps take alike, so eager is near every graph
        table = graphed.measure(clock=lambda: next(clock))
        assert {s.size for s in table.samples} == {64, 256} and set(prepared) == set(graphed.keys)
    with Graphed(lambda x: x * 2, example=example, config=config) as graphed:
        graphed.warm_up().capture()
        table = graphed.measure(clock=lambda: next(clock))
        assert {s.size for s in table.samples if s.way == "eager"} == {64, 65, 160, 256}


def test_measuring_takes_at_most_twice_as_long_as_its_first_pass(ready, monkeypatch):
    graphed = ready(lambda x: x * 2, X, mode="full", sizes=(2, 4, 8))
    with monkeypatch.context() as patch:
        clock = Clock(patch, eager=lambda n: 1.01e-3, replay=lambda n: 1e-3)
        turns = []
        graphed.measure(budget_seconds=1e-6, clock=clock, on_step=lambda: turns.append(clock.now))
    first = turns[9 * 6 - 1]
    assert 1.9 * first < clock.now <= 2.001 * first, "near choices are timed side by side for as long again"
    assert len(turns) == 9 * 6 + (len(clock.ways) - 9 * 6) / 2, "two runs a turn"
