"""What is timed, in which turns, and what becomes of the times. Steps and clock are scripted."""

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime import BatchKind, GraphConfig, StepRun
from ostinato.runtime.dispatch import Turns, steps_to_time, time_steps
from ostinato.runtime.dispatch.measure import spaced
from ostinato.runtime.keys import GraphKey, LiveBatch, Mode, RuntimeMode
from ostinato.runtime.planning import plan_keys, token_ladder

DECODE = BatchKind(uniform_query_len=1)


class Scripted:
    """`StepsToTime` whose steps take what ``seconds(decision)`` says, on a clock of its own."""

    def __init__(self, seconds=lambda decision: 1e-3, max_num_reqs=8):
        self.seconds = seconds
        self.max_num_reqs = max_num_reqs
        self.now = 0.0
        self.log = []
        self.turns = Turns(self, overlap=False, clock=lambda: self.now)

    def live(self, kind, key):
        if kind.uniform_query_len is None:
            return LiveBatch(num_tokens=key.num_tokens, num_reqs=1, context_tokens=kind.kv_tier)
        n = min(key.num_tokens, key.num_reqs or self.max_num_reqs, self.max_num_reqs)
        return LiveBatch(num_tokens=n, num_reqs=n, uniform_query_len=1, context_tokens=kind.kv_tier)

    def step(self, decision, like):
        def run():
            self.log.append((decision.runtime_mode.value, decision.padded_tokens))
            self.now += self.seconds(decision)

        return StepRun(lambda: self.log.append("ready"), run)

    def state(self):
        return {}

    def wait(self):
        """The host does all the work."""


def todo(steps, *, sizes=None, tiers=None, config=None, mode=Mode.FULL_AND_PIECEWISE, **more):
    config = config or GraphConfig(sizes=(4, 8, 16), decode_sizes=(1, 2, 8), max_num_reqs=8, kv_tiers=tiers)
    keys = plan_keys(config, mode, max_size=16, **more)
    return steps_to_time(keys, steps, query_lens=(1,), tiers=tiers, sizes=sizes)


def named(found):
    return {
        (str(step.kind), step.decision.runtime_mode.value, step.size, step.decision.live.num_tokens) for step in found
    }


def test_every_way_at_every_size_and_eager_at_the_live_size():
    assert named(todo(Scripted())) == {
        *(("mixed", mode, n, n) for mode in ("PIECEWISE", "EAGER") for n in (4, 8, 16)),
        *(("decode", "FULL", n, n) for n in (1, 2, 8)),
        *(("decode", "PIECEWISE", n, min(n, 8)) for n in (4, 8, 16)),
        *(("decode", "EAGER", n, n) for n in (1, 2, 4, 8)),
    }


def test_sizes_that_are_named_are_the_only_ones():
    assert {step.size for step in todo(Scripted(), sizes=(8,))} == {8}


def test_tiers_are_measured_apart_and_where_graphs_have_them():
    found = named(todo(Scripted(), tiers=(16, 64)))
    decodes = {kind for kind, mode, *_ in found if mode == "FULL"}
    assert decodes == {"decode kv_tier=16", "decode kv_tier=64"}
    assert {kind for kind, *_ in found if kind.startswith("mixed")} == {"mixed"}


def test_a_batch_that_cannot_be_made_up_is_left_out():
    steps = Scripted()
    original = steps.live
    steps.live = lambda kind, key: None if kind == DECODE else original(kind, key)
    assert {kind for kind, *_ in named(todo(steps))} == {"mixed"}


def test_the_same_batch_is_timed_eagerly_once():
    found = [(s.kind, s.decision.runtime_mode, s.size) for s in todo(Scripted())]
    assert len(found) == len(set(found))


def test_the_table_holds_the_first_quartile_of_the_times():
    timed = {"EAGER": [3.0, 1.0, 2.0, 2.0], "PIECEWISE": [4.0, 5.0, 6.0, 5.0]}
    times = {mode: [9.0, *found, *found] for mode, found in timed.items()}  # the first run gets it warm
    steps = Scripted(lambda decision: times[decision.runtime_mode.value].pop(0) * 1e-3)
    config = GraphConfig(sizes=(4,), max_num_reqs=8)
    keys = plan_keys(config, Mode.PIECEWISE, max_size=16)
    chosen = steps_to_time(keys, steps, query_lens=(), tiers=None)
    table = time_steps(chosen, steps, take_turn=steps.turns, budget_seconds=1e-3).table
    live = LiveBatch(num_tokens=4, num_reqs=1)
    assert table.cost_ms(live, None) == pytest.approx(1.75)
    assert table.cost_ms(live, keys[0]) == pytest.approx(4.75)
    assert [s.spread for s in table.samples] == [pytest.approx(0.5 / ms, abs=1e-4) for ms in (4.75, 1.75)]


def test_what_disturbs_half_of_the_turns_changes_no_cost():
    steps = Scripted()
    chosen = todo(steps)
    quiet = time_steps(chosen, steps, take_turn=steps.turns, budget_seconds=1.0).table
    steps = Scripted()
    disturbed = range(len(chosen) * 2, len(chosen) * 7)  # five rounds of nine, the first of which is not timed
    turns = []
    steps.seconds = lambda decision: 1e-3 * (3 if len(turns) in disturbed else 1)
    loud = time_steps(chosen, steps, take_turn=steps.turns, budget_seconds=1.0, on_step=lambda: turns.append(1)).table
    assert [s.ms for s in loud.samples] == [s.ms for s in quiet.samples] == [pytest.approx(1.0)] * len(chosen)
    assert all(s.spread > 1 for s in loud.samples), "the spread tells"


def test_steps_take_turns_there_and_back():
    steps = Scripted()
    chosen = todo(steps)
    time_steps(chosen, steps, take_turn=steps.turns, budget_seconds=1e-9)
    runs = [entry for entry in steps.log if entry != "ready"]
    once = [(s.decision.runtime_mode.value, s.size) for s in chosen]
    assert runs == once + (once[::-1] + once) * 4
    assert steps.log.count("ready") == len(runs), "each turn has its inputs put in place"


def test_a_sixteenth_of_a_drift_is_left():
    """A machine that slows down while it is measured: ways that are equal come out nearly equal."""
    steps = Scripted()
    steps.seconds = lambda decision: 1e-3 * (1 + len(steps.log) / 400)
    chosen = todo(steps)
    table = time_steps(chosen, steps, take_turn=steps.turns, budget_seconds=1e-9).table
    costs = [sample.ms for sample in table.samples]
    assert steps.now / len(chosen) / 9 > 1.1e-3, "it did slow down"
    slower_by = len(chosen) * 8 * 2 / 400  # log entries of eight rounds, two each
    assert max(costs) - min(costs) < slower_by / 16 * 1.01


@pytest.mark.parametrize(("budget", "most"), [(1e-9, 9), (1.0, 33)])
def test_the_budget_buys_repeats(budget, most):
    steps = Scripted()
    chosen = todo(steps)
    turns = []
    time_steps(chosen, steps, take_turn=steps.turns, budget_seconds=budget, on_step=lambda: turns.append(1))
    assert steps.log.count(("FULL", 1)) == most
    assert len(turns) == 9 * len(chosen)


def test_short_steps_get_more_of_it():
    steps = Scripted(lambda decision: 1e-4 * decision.padded_tokens**2)
    time_steps(todo(steps), steps, take_turn=steps.turns, budget_seconds=0.1)
    assert steps.log.count(("FULL", 1)) > 3 * steps.log.count(("EAGER", 16)) >= 15


def test_a_clock_too_coarse_for_a_step_gives_a_cost_all_the_same():
    steps = Scripted(lambda decision: 0.0)
    table = time_steps(todo(steps), steps, take_turn=steps.turns, budget_seconds=1.0).table
    assert all(sample.ms > 0 and sample.spread == 0 for sample in table.samples)


def test_nothing_to_time_is_an_empty_table():
    steps = Scripted()
    assert time_steps([], steps, take_turn=steps.turns, budget_seconds=1.0).table.samples == ()


def test_keys_for_adapters_and_variants_are_left_out():
    key = GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=4, variant="draft")
    assert steps_to_time([key], Scripted(), query_lens=(1,), tiers=None) == []


@given(st.sets(st.integers(1, 5000), min_size=1, max_size=60))
def test_spaced_sizes(sizes):
    kept, ordered = spaced(sorted(sizes)), sorted(sizes)
    assert (kept[0], kept[-1]) == (ordered[0], ordered[-1])
    assert set(kept) <= sizes and kept == sorted(set(kept))
    for low, high in itertools.pairwise(kept):
        between = [size for size in ordered if low < size < high]
        assert high <= 1.5 * low or all(size <= 1.5 * low for size in between)
    assert all(c > 1.5 * a for a, c in zip(kept, kept[2:], strict=False)), "as few as that"


def test_a_dense_ladder_is_thinned():
    ladder = token_ladder(2048)
    assert len(spaced(ladder)) < 0.7 * len(ladder)
    ratios = [b / a for a, b in zip(spaced(ladder), spaced(ladder)[1:], strict=False)]
    assert statistics.median(ratios) < 2


def test_of_buckets_that_hold_no_more_than_a_smaller_one_as_many_are_timed_as_are_weighed():
    steps = Scripted(max_num_reqs=3)
    config = GraphConfig(sizes=(4, 8, 16, 32), max_num_reqs=3)
    keys = plan_keys(config, Mode.PIECEWISE, max_size=32)
    found = named(steps_to_time(keys, steps, query_lens=(1,), tiers=None))
    assert {row for row in found if row[0] == "decode"} == {
        *(("decode", "PIECEWISE", size, 3) for size in (4, 8, 16)),
        ("decode", "EAGER", 3, 3),
    }
