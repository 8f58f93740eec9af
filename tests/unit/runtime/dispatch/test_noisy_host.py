"""Decisions by costs that were measured on a host whose speed changes, judged by the true costs.

A made-up machine whose host changes its speed while steps are timed, and whose true costs are known. Steps are served
one right behind the other there, or waited for one by one.

Times are of the size that a 1B shape shows on an H200. What waits for the host is slowed down with it; what waits for
the device is not. Sizes of the host's part and of its disturbances are assumptions, not measurements.
"""

import math
import random
import statistics

import pytest

from ostinato.bench.scenarios.dispatch import losses as benchmark_losses
from ostinato.bench.scenarios.dispatch import merged
from ostinato.runtime import CostTable, GraphConfig, StepRun
from ostinato.runtime.dispatch import KeyTable, Turns, choose, confirmed_costs, decision_for, steps_to_time, time_steps
from ostinato.runtime.dispatch.costs import way_of
from ostinato.runtime.keys import LiveBatch, Mode
from ostinato.runtime.planning import plan_keys

MAX_REQS, MAX_TOKENS = 256, 2048
DECODE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
TOKEN_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048)
KEYS = plan_keys(
    GraphConfig(sizes=TOKEN_SIZES, decode_sizes=DECODE_SIZES, max_num_reqs=MAX_REQS),
    Mode.FULL_AND_PIECEWISE,
    max_size=MAX_TOKENS,
)
FULL_MIXED = 512
THREE_WAYS = plan_keys(
    GraphConfig(sizes=TOKEN_SIZES, decode_sizes=DECODE_SIZES, max_num_reqs=MAX_REQS),
    Mode.FULL_AND_PIECEWISE,
    max_size=MAX_TOKENS,
    full_mixed_max_tokens=FULL_MIXED,
)
"""As `auto` has them, by another ladder: full graphs of small mixed steps too, with slots for 16 requests."""


class NoisyHost:
    """`StepsToTime` on a clock of its own.

    Args:
        seed: of the kernels' whims and of the noise.
        noise: share of the full disturbance; 0 for a quiet machine.
        enters_ms: what a request takes the host more in the first step after one of others; as an engine's does.
        is_ready: whether `StepRun.ready` has taken that already when a step is timed.
        eager_ms: what an eager step takes the host at the device's side.
        overlap: whether steps are served, and timed, one right behind the other.
    """

    def __init__(self, seed, *, noise=1.0, enters_ms=0.004, is_ready=True, eager_ms=4.4, overlap=False):
        whims = random.Random(seed)
        self._whim = {
            (way, decode, n): whims.uniform(0.94, 1.06) if n > 16 else 1.0
            for way in ("full decode graph", "piecewise graph")
            for decode in (True, False)
            for n in (*DECODE_SIZES, *TOKEN_SIZES)
        }
        self._whim |= {("full graph", False, n): whims.uniform(0.94, 1.06) if n > 16 else 1.0 for n in TOKEN_SIZES}
        self._random = random.Random(f"noise {seed}")
        self._eager_ms = eager_ms
        self._noise, self._enters_ms, self._is_ready = noise, enters_ms, is_ready
        self._entered = None
        self._overlap = overlap
        self.turns = Turns(self, overlap=overlap, clock=lambda: self.now)
        self.now = 0.0
        self.free_at = 0.0  # the device, of all that it was given
        self._drift, self._drift_at = 0.0, 0.0
        self._slow_from = self._random.expovariate(1 / 3)
        self._slow_until = self._slow_from + self._random.uniform(0.5, 4)

    # --- true costs ---------------------------------------------------------------------------------

    def parts(self, decision):
        """(ms of the host that come before or after the device's, of the host at its side, of the device)."""
        live, way = decision.live, way_of(decision.key)
        reqs, size = live.num_reqs, decision.padded_tokens
        is_decode = live.uniform_query_len is not None
        whim = self._whim.get((way, is_decode, size), 1.0)
        device = 0.55 + (0.0083 if is_decode else 0.0034) * size
        if way == "full decode graph":
            return 0.25 + 0.001 * reqs, 0.0, device * whim
        if way == "piecewise graph":
            return 0.15 + 0.001 * reqs, 1.25, (0.1 + device) * whim
        if way == "full graph":
            return 0.25 + 0.001 * reqs, 0.0, (0.1 + device) * whim  # logits of all its slots
        return 0.2 + 0.001 * reqs, self._eager_ms + 0.0003 * size, 0.15 + device * 1.05

    def true_ms(self, decision):
        before, beside, device = self.parts(decision)
        return max(before + beside, device) if self._overlap else before + max(beside, device)

    # --- disturbed ones -----------------------------------------------------------------------------

    def slowness(self):
        """Of the host, now: periods of seconds at two thirds of its speed, and a walk of a few percent."""
        while self.now >= self._slow_until:
            self._slow_from = self._slow_until + self._random.expovariate(1 / 4)
            self._slow_until = self._slow_from + self._random.uniform(0.5, 4)
        elapsed, self._drift_at = self.now - self._drift_at, self.now
        keeps = math.exp(-elapsed / 3)
        self._drift = self._drift * keeps + self._random.gauss(0, 0.05) * math.sqrt(1 - keeps**2)
        slow = 1.5 if self._slow_from <= self.now else 1.0
        return 1 + self._noise * (slow * math.exp(abs(self._drift)) - 1)

    def take(self, decision, *, enters=False):
        """Let the host's time of one run pass, and give the device its work."""
        before, beside, device = self.parts(decision)
        before += 0.1 + self._enters_ms * decision.live.num_reqs if enters else 0.0
        host = self.slowness() * math.exp(self._noise * self._random.gauss(0, 0.03))
        device *= math.exp(self._noise * self._random.gauss(0, 0.005))
        if self._random.random() < 0.02:
            before += self._noise * self._random.uniform(0.3, 3)
        self.now += host * before * 1e-3
        begins = max(self.now, self.free_at)
        self.now += host * beside * 1e-3
        self.free_at = max(begins + device * 1e-3, self.now)

    # --- StepsToTime --------------------------------------------------------------------------------

    def live(self, kind, key):
        if kind.uniform_query_len is None:
            return LiveBatch(num_tokens=key.num_tokens, num_reqs=1)
        n = min(key.num_tokens, key.num_reqs or MAX_REQS)
        return LiveBatch(num_tokens=n, num_reqs=n, uniform_query_len=1)

    def step(self, decision, like):
        me = object()

        def run():
            self.take(decision, enters=self._entered is not me)
            self._entered = me

        return StepRun(run if self._is_ready else lambda: None, run)

    def state(self):
        return {}

    # --- TimedDevice --------------------------------------------------------------------------------

    def wait(self):
        self.now = max(self.now, self.free_at)

    def marks(self, count):
        return [Mark(self) for _ in range(count)]


class Mark:
    def __init__(self, host):
        self._host = host

    def set(self):
        self.at = max(self._host.now, self._host.free_at)

    def seconds_since(self, earlier):
        return self.at - earlier.at


def lives():
    """Every size of decode, and of a prompt."""
    yield from (LiveBatch(num_tokens=n, num_reqs=n, uniform_query_len=1) for n in range(1, MAX_REQS + 1))
    yield from (LiveBatch(num_tokens=n, num_reqs=1) for n in range(1, MAX_TOKENS + 1))


def lives_of_three_ways():
    """Those, and mixed steps of as many requests as full graphs hold, of more, and of many."""
    yield from lives()
    for num_reqs in (16, 17, 64):
        yield from (LiveBatch(num_tokens=n, num_reqs=num_reqs) for n in range(num_reqs + 1, FULL_MIXED + 1))


def losses(host, costs, keys=KEYS, batches=lives):
    """Percent that the choice by ``costs`` takes longer than the best of all that were weighed, at every size."""
    table, found = KeyTable(keys), []
    for live in batches():
        decision = choose(live, table, costs=costs)
        weighed = [None, decision.key, *(other.key for other in decision.alternatives if other.cost_ms is not None)]
        true = [host.true_ms(_by(live, key)) for key in weighed]
        found.append(100 * (host.true_ms(_by(live, decision.key)) / min(true) - 1))
    return found


def _by(live, key):
    return decision_for(live, key)


BAR_PERCENT = 3.0
SEEDS = range(200, 212)
"""None of those by which constants were chosen (0 to 29)."""


def first_times(host, keys=KEYS, *, sizes=None, budget_seconds=4.0):
    todo = steps_to_time(keys, host, query_lens=(1,), tiers=None, sizes=sizes)
    return time_steps(todo, host, take_turn=host.turns, budget_seconds=budget_seconds)


def apart(seed, **settings):
    """Losses as costs were measured before: each for itself, and whoever had their first turn in it."""
    host = NoisyHost(seed, is_ready=False, **settings)
    return losses(host, first_times(host).table)


def side_by_side(seed, keys=KEYS, batches=lives, **settings):
    host = NoisyHost(seed, **settings)
    first = first_times(host, keys)
    spent = host.now
    table = confirmed_costs(first, host, take_turn=host.turns, budget_seconds=spent)
    assert host.now < 2.01 * spent, "at most as long again"
    return losses(host, table, keys, batches)


def judged(decisions, tables):
    """Losses as `ostinato bench dispatch` finds them."""
    kinds = [[d for d in decisions if bool(d.live.uniform_query_len) == is_decode] for is_decode in (True, False)]
    times = merged(tables, min)
    return [loss for same in kinds for loss, _ in benchmark_losses(same, times).values()]


def over(found):
    return 100 * sum(loss > BAR_PERCENT for loss in found) / len(found)


served = pytest.mark.parametrize("overlap", [True, False], ids=["one behind the other", "waited for"])


@served
def test_side_by_side_holds_the_bar_where_apart_does_not(overlap):
    """In 11 of 12 runs no size of 2,304 loses more than 3 %, in none one more than 5 %."""
    old, new = [[measure(seed, overlap=overlap) for seed in SEEDS] for measure in (apart, side_by_side)]
    assert sum(max(found) > BAR_PERCENT for found in old) >= len(SEEDS) / 2, "the host is noisy enough to matter"
    worst = sorted(max(found) for found in new)
    assert worst[-2] < BAR_PERCENT and worst[-1] < 5, worst
    assert statistics.fmean(map(over, new)) < 0.1 * statistics.fmean(map(over, old))


@served
@pytest.mark.parametrize(
    "eager_ms", [pytest.param(4.4, id="eager far", marks=pytest.mark.slow), pytest.param(1.8, id="eager near")]
)
def test_three_ways_hold_the_bar_too(eager_ms, overlap):
    """Full graphs of mixed steps beside pieces and eager, and steps of more requests than those have slots."""
    found = [side_by_side(seed, THREE_WAYS, lives_of_three_ways, eager_ms=eager_ms, overlap=overlap) for seed in SEEDS]
    worst = sorted(max(one) for one in found)
    assert worst[-2] < BAR_PERCENT and worst[-1] < 5, worst


@served
@pytest.mark.parametrize("eager_ms", [4.4, 1.8], ids=["eager far", "eager near"])
def test_the_best_of_three_ways_is_found_on_a_quiet_host(eager_ms, overlap):
    host = {"noise": 0.0, "eager_ms": eager_ms, "overlap": overlap}
    assert max(side_by_side(300, THREE_WAYS, lives_of_three_ways, **host)) < 2


@served
@pytest.mark.parametrize("seed", [300, 301])
def test_on_a_quiet_host_the_best_is_found(seed, overlap):
    """Within the hysteresis of 1 %, and of how an eager step's cost bends between two sizes."""
    assert max(side_by_side(seed, noise=0.0, overlap=overlap)) < 2


def off_at_worst(seed, *, overlap):
    """Percent by which first costs of full decode graphs, which wait for the device, are off beside each other."""
    host = NoisyHost(seed, overlap=overlap)
    found = first_times(host)
    table, decodes = found.table, [step.decision for step in found.todo if step.cost[1] == "full decode graph"]
    off = [table.cost_ms(decision.live, decision.key) / host.true_ms(decision) for decision in decodes]
    return 100 * (max(off) / min(off) - 1)


def test_behind_each_other_the_host_is_in_no_cost_of_what_waits_for_the_device():
    """What is left is the noise of the device, of half a percent. One by one a slow host is in some of them."""
    in_a_row, one_by_one = ([off_at_worst(seed, overlap=overlap) for seed in SEEDS] for overlap in (True, False))
    assert max(in_a_row) < 1 and max(one_by_one) > 5, (in_a_row, one_by_one)


def test_the_usual_order_alone_would_lose():
    """Else measuring could not be told from not measuring."""
    assert over(losses(NoisyHost(200), CostTable())) > 10


def test_the_benchmark_judges_bad_decisions_as_hard_as_the_truth_does():
    """Its three measurements are made on the same host, where decisions of costs that were measured apart lose."""
    sizes = sorted({key.num_tokens for key in KEYS})
    true, found = [], []
    for seed in (400, 401, 402):
        host = NoisyHost(seed, is_ready=False)
        costs = first_times(host).table
        true.append(over(losses(host, costs)))
        judge, tables = NoisyHost(seed), []
        judge.now = host.now
        for _ in range(3):
            began = judge.now
            first = first_times(judge, sizes=sizes, budget_seconds=10.0)
            spent = judge.now - began
            tables.append(confirmed_costs(first, judge, take_turn=judge.turns, budget_seconds=spent))
        found.append(over(judged([choose(live, KeyTable(KEYS), costs=costs) for live in lives()], tables)))
    assert sum(true) > 3, "there is something to be found"
    assert sum(found) > 0.85 * sum(true), (found, true)
