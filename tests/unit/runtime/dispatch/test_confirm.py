"""Contenders are timed side by side, within a budget, and the table says so. Steps and clock are scripted."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime import BatchKind, CostTable, GraphConfig, StepRun
from ostinato.runtime.dispatch import Turns, confirmed_costs, steps_to_time, time_steps
from ostinato.runtime.dispatch.contests import contests, in_line, with_eager_between
from ostinato.runtime.keys import LiveBatch, Mode
from ostinato.runtime.planning import plan_keys

KIND = BatchKind()
KEYS = plan_keys(GraphConfig(sizes=(64, 128, 256, 512)), Mode.PIECEWISE, max_size=512)


class Scripted:
    """`StepsToTime` whose steps take what ``seconds(decision)`` says, on a clock of its own."""

    def __init__(self, seconds, *, ready=0.0):
        self.seconds, self.ready = seconds, ready
        self.now = 0.0
        self.log = []
        self.turns = Turns(self, overlap=False, clock=lambda: self.now)

    def live(self, kind, key):
        return LiveBatch(num_tokens=key.num_tokens, num_reqs=1)

    def step(self, decision, like):
        def ready():
            self.log.append("ready")
            self.now += self.ready

        def run():
            self.log.append((decision.runtime_mode.value, decision.padded_tokens))
            self.now += self.seconds(decision)

        return StepRun(ready, run)

    def wait(self):
        """The host does all the work."""

    def first(self):
        todo = steps_to_time(KEYS, self, query_lens=(), tiers=None)
        return time_steps(todo, self, take_turn=self.turns, budget_seconds=1e-9)


def by_size(graph, eager):
    return lambda decision: (eager if decision.key is None else graph)[decision.padded_tokens] * 1e-3


FLAT = {64: 1.0, 128: 1.02, 256: 1.05, 512: 3.0}
FAR = dict.fromkeys((64, 96, 128, 192, 256, 384, 512), 9.0)


def costs(table):
    return {(sample.way, sample.size): sample.ms for sample in table.samples}


def pairs_of(found):
    return {(one.cost[1:], other.cost[1:]) for one, other in found}


def confirm(steps, first, budget=1.0, **more):
    return confirmed_costs(first, steps, take_turn=steps.turns, budget_seconds=budget, **more)


# --- what is contested ------------------------------------------------------------------------------


def test_near_buckets_contend_and_far_ones_do_not():
    steps = Scripted(by_size(FLAT, FAR))
    first = steps.first()
    way = "piecewise graph"
    assert pairs_of(contests(first.todo, first.least)) == {
        ((way, 64), (way, 128)),
        ((way, 64), (way, 256)),
        ((way, 128), (way, 256)),
    }


def test_the_first_in_the_order_contends_with_whatever_would_be_taken_instead():
    """Else a first measurement that went wrong by half would depart from the order unseen."""
    steps = Scripted(by_size(FLAT | {64: 2.0}, FAR))
    first = steps.first()
    way = "piecewise graph"
    assert ((way, 64), (way, 128)) in pairs_of(contests(first.todo, first.least))


def test_only_what_is_weighed_together_contends():
    sizes = tuple(range(64, 64 * 7, 64))
    keys = plan_keys(GraphConfig(sizes=sizes), Mode.PIECEWISE, max_size=512)
    steps = Scripted(lambda decision: 9e-3 if decision.key is None else 1e-3)
    todo = steps_to_time(keys, steps, query_lens=(), tiers=None)
    first = time_steps(todo, steps, take_turn=steps.turns, budget_seconds=1e-9)
    apart = {(b[1] - a[1]) // 64 for a, b in pairs_of(contests(todo, first.least))}
    assert apart == {1, 2}, "three buckets of a kind are weighed"


def test_eager_is_timed_inside_the_classes_where_it_is_near():
    near = {64: 2.0, 128: 2.0, 256: 2.0, 257: 2.0, 512: 3.1}
    steps = Scripted(by_size(FLAT, near))
    first = steps.first()
    more = with_eager_between(first.todo, first.least, steps)
    added = [step for step in more if step.cost not in {old.cost for old in first.todo}]
    assert {step.cost[1:] for step in added} == {("eager", 257), ("eager", 384)}, "(256, 512] alone"
    assert {size for pair in pairs_of(contests(more, first.least)) for way, size in pair if way == "eager"} == {
        256,
        257,
        384,
        512,
    }


def test_ways_that_are_left_for_many_requests_contend_below_a_faster_full_graph():
    """A full graph of mixed steps has slots for few requests. Steps with more choose between pieces and eager."""
    config = GraphConfig(sizes=(64, 128), max_num_reqs=64)
    keys = plan_keys(config, Mode.FULL_AND_PIECEWISE, max_size=128, full_mixed_max_tokens=128)
    keys = [key for key in keys if key.uniform_query_len is None]
    ms = {"FULL": 1.0, "PIECEWISE": 4.0, "EAGER": 3.9}
    steps = Scripted(lambda decision: ms[decision.runtime_mode.value] * 1e-3 * (1 + decision.padded_tokens / 64))
    first = time_steps(
        steps_to_time(keys, steps, query_lens=(), tiers=None), steps, take_turn=steps.turns, budget_seconds=1e-9
    )
    more = with_eager_between(first.todo, first.least, steps)
    assert ("eager", 65) in {step.cost[1:] for step in more}
    found = pairs_of(contests(more, first.least))
    assert (("piecewise graph", 64), ("eager", 64)) in found and (("piecewise graph", 128), ("eager", 128)) in found
    assert not any("full graph" in (one[0], other[0]) for one, other in found), "it is far ahead"


def test_what_lies_between_is_found_out():
    """Eager is flat and then rises: in the middle it is cheaper than a line between the ends says."""
    eager = {64: 3.0, 128: 3.0, 256: 3.0, 257: 3.0, 384: 3.0, 512: 3.6}
    steps = Scripted(by_size(FLAT | {512: 3.2}, eager))
    table = confirm(steps, steps.first())
    live = LiveBatch(num_tokens=384)
    assert table.cost_ms(live, None) == pytest.approx(3.0)
    assert list(costs(table))[-2:] == [("eager", 257), ("eager", 384)], "behind those that were there"


def test_a_step_behind_the_smaller_bucket_is_found_out():
    """One token more than whole tiles of a kernel takes another row of them, and so does the rest of the class."""
    steps = Scripted(by_size(FLAT | {512: 3.2}, {64: 3.0, 128: 3.0, 256: 3.0, 257: 3.4, 384: 3.4, 512: 3.4}))
    table = confirm(steps, steps.first())
    assert table.cost_ms(LiveBatch(num_tokens=256), None) == pytest.approx(3.0)
    assert table.cost_ms(LiveBatch(num_tokens=257), None) == pytest.approx(3.4)


# --- how it is timed --------------------------------------------------------------------------------


def test_walks_go_there_and_back_and_each_turn_is_made_ready():
    steps = Scripted(by_size(FLAT, FAR))
    first = steps.first()
    steps.log.clear()
    turns = []
    confirm(steps, first, budget=0.02, on_step=lambda: turns.append(1))
    runs = [entry for entry in steps.log if entry != "ready"]
    there = [("PIECEWISE", n) for n in (64, 128, 256) for _ in range(2)]
    assert runs[:18] == there[::-1] + there + there[::-1]
    assert steps.log.count("ready") == len(turns) == len(runs) / 2, "progress is told of each turn"


@pytest.mark.parametrize("ready", [0.0, 2e-3])
@pytest.mark.parametrize("budget", [1e-9, 0.013, 0.05])
def test_no_turn_begins_that_would_end_later_than_the_budget(budget, ready):
    steps = Scripted(by_size(FLAT, FAR), ready=ready)
    first = steps.first()
    began = steps.now
    confirm(steps, first, budget=budget)
    longest = 2 * 1.05e-3 + ready
    spent = steps.now - began
    # what a step takes is not known before its first turn
    assert budget - longest <= spent <= budget + longest if budget < 3 * longest else spent <= budget + 1e-12


def test_without_time_the_first_measurement_stands():
    steps = Scripted(by_size(FLAT, FAR))
    first = steps.first()
    assert costs(confirm(steps, first, budget=1e-12)) == pytest.approx(costs(first.table))


def test_nothing_to_confirm_takes_no_time():
    steps = Scripted(by_size({64: 1, 128: 2, 256: 4, 512: 8}, FAR | {64: 20, 128: 20, 256: 20, 512: 20}))
    first = steps.first()
    before = steps.now
    assert costs(confirm(steps, first)) == costs(first.table)
    assert steps.now == before


def test_a_clock_too_coarse_for_a_step():
    steps = Scripted(lambda decision: 0.0)
    assert set(costs(confirm(steps, steps.first())).values()) == {1e-6}


def test_no_steps_at_all():
    steps = Scripted(by_size(FLAT, FAR))
    first = time_steps([], steps, take_turn=steps.turns, budget_seconds=1.0)
    assert confirm(steps, first) == CostTable()


def test_a_first_measurement_in_which_the_host_was_slow_for_one_of_two_is_put_right():
    steps = Scripted(by_size(FLAT, FAR))
    disturbed = Scripted(by_size(FLAT | {64: 1.12}, FAR))
    table = costs(confirm(steps, disturbed.first()))
    assert table["piecewise graph", 128] / table["piecewise graph", 64] == pytest.approx(1.02, rel=2e-3)


def test_a_host_that_slows_down_in_half_of_the_walks_changes_no_ratio():
    """Eager waits for the host, the graph for the device."""
    quiet = by_size(FLAT | {512: 3.2}, {64: 3, 128: 3, 256: 3, 257: 3, 384: 3.15, 512: 3.3})
    steps = Scripted(quiet)
    first = steps.first()
    steps.seconds = lambda d: quiet(d) * (1.5 if d.key is None and int(steps.now / 0.05) % 2 else 1)
    table = costs(confirm(steps, first, budget=0.3))
    assert table["eager", 512] / table["piecewise graph", 512] == pytest.approx(3.3 / 3.2, rel=2e-3)
    assert table["eager", 384] / table["piecewise graph", 512] == pytest.approx(3.15 / 3.2, rel=2e-3)


# --- the table in line ------------------------------------------------------------------------------


def cost(size):
    return (KIND, "eager", size)


@given(st.lists(st.floats(0.5, 20.0), min_size=2, max_size=12), st.floats(0.5, 2.0), st.randoms())
def test_ratios_that_agree_are_all_met_along_a_chain(true, height, random):
    """Neighbours two apart, as they are weighed; the first measurement is far off, and higher or lower as a whole."""
    first = {cost(n): ms * height * random.uniform(0.95, 1.05) for n, ms in enumerate(true, 1)}
    pairs = [(a, b) for a, b in itertools.combinations(range(1, len(true) + 1), 2) if b - a <= 2]
    found = in_line(first, {(cost(a), cost(b)): (true[a - 1] / true[b - 1], 1.0) for a, b in pairs})
    for a, b in pairs:
        assert found[cost(a)] / found[cost(b)] == pytest.approx(true[a - 1] / true[b - 1], rel=6e-3)
    middle = sum(math.log(ms) for ms in found.values()) - sum(math.log(ms) for ms in first.values())
    assert abs(middle) / len(true) < 1e-3, "the height stays"


def test_ratios_that_contradict_are_settled_between_by_weight():
    first = {cost(n): 1.0 for n in (1, 2, 3)}
    around = {(cost(1), cost(2)): (1.1, 1.0), (cost(2), cost(3)): (1.1, 1.0), (cost(1), cost(3)): (1.0, 1.0)}
    even = in_line(first, around)
    assert 1.0 < even[cost(1)] / even[cost(3)] < 1.21
    heavy = in_line(first, around | {(cost(1), cost(3)): (1.0, 100.0)})
    assert heavy[cost(1)] / heavy[cost(3)] == pytest.approx(1.0, abs=5e-3)


def test_what_is_compared_with_nothing_stays_to_the_last_digit():
    first = {cost(n): n / 7 for n in (1, 2, 3)}
    assert in_line(first, {(cost(1), cost(2)): (0.5, 1.0)})[cost(3)] == first[cost(3)]
    assert in_line(first, {}) == first
