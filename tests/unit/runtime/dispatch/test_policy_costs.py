"""`choose` by measured cost: never far from the least, never a graph slower than eager, and not flipped by noise."""

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ostinato.runtime import HYSTERESIS, BatchKind, CostSample, CostTable, GraphConfig
from ostinato.runtime.dispatch import Dispatcher, KeyTable, Reason, choose
from ostinato.runtime.keys import GraphKey, LiveBatch, Mode, RuntimeMode
from ostinato.runtime.planning import plan_keys
from ostinato.telemetry import EventBus

DECODE = BatchKind(uniform_query_len=1)
CONFIG = GraphConfig(sizes=(4, 8, 16, 32), decode_sizes=(1, 2, 4, 8), max_num_reqs=8)
KEYS = plan_keys(CONFIG, Mode.FULL_AND_PIECEWISE, max_size=32)
LIVES = st.one_of(
    st.builds(lambda n: LiveBatch(num_tokens=n, num_reqs=min(n, 8)), st.integers(1, 40)),
    st.builds(lambda n: LiveBatch(num_tokens=n, num_reqs=n, uniform_query_len=1), st.integers(1, 8)),
)
TIMES = st.dictionaries(st.integers(1, 40), st.floats(0.1, 10.0), min_size=1, max_size=6)
WAYS = ("eager", "full decode graph", "piecewise graph")


def table_of(curves):
    """``{(kind, way): {size: ms}}`` as a table."""
    return CostTable(
        tuple(
            CostSample(kind=kind, way=way, size=size, ms=ms)
            for (kind, way), times in curves.items()
            for size, ms in times.items()
        )
    )


@st.composite
def tables(draw, is_whole=True):
    ways = [(kind, way) for kind in (DECODE, BatchKind()) for way in WAYS]
    return table_of({w: draw(TIMES) for w in ways if is_whole or draw(st.booleans())})


def usable(live):
    """Keys of all groups that hold ``live``, written out again; the three smallest of each are weighed."""
    groups = {}
    for key in sorted(KEYS, key=lambda k: k.num_tokens):
        is_decode = key.uniform_query_len is not None
        if key.num_tokens >= live.num_tokens and (not is_decode or live.uniform_query_len == 1):
            groups.setdefault(is_decode, []).append(key)
    return [key for group in (groups.get(True, []), groups.get(False, [])) for key in group[:3]]


def costs_of(table, live):
    return {key: table.cost_ms(live, key) for key in [*usable(live), None]}


@settings(max_examples=300)
@given(table=tables(), live=LIVES)
def test_the_choice_is_within_the_hysteresis_of_the_least_and_never_slower_than_eager(table, live):
    decision = choose(live, KeyTable(KEYS), costs=table)
    costs = costs_of(table, live)
    assert decision.cost_ms == costs[decision.key]
    assert decision.cost_ms <= (1 + HYSTERESIS) * min(costs.values())
    assert decision.cost_ms <= costs[None], "a graph slower than eager is never used"
    if decision.key is None and len(costs) > 1:
        assert decision.reason is Reason.MEASURED_SLOWER
    else:
        assert decision.reason is choose(live, KeyTable([decision.key] if decision.key else [*KEYS])).reason


@settings(max_examples=300)
@given(table=tables(), live=LIVES)
def test_every_other_candidate_is_listed_with_its_cost(table, live):
    decision = choose(live, KeyTable(KEYS), costs=table)
    costs = costs_of(table, live)
    priced = {r.key: r.cost_ms for r in decision.alternatives if r.cost_ms is not None}
    if len(costs) > 1:
        assert priced == {key: cost for key, cost in costs.items() if key != decision.key}
    for rejection in decision.alternatives:
        if rejection.reason is Reason.LATER_IN_ORDER:
            assert rejection.cost_ms <= decision.cost_ms


@settings(max_examples=300)
@given(table=tables(is_whole=False), live=LIVES)
def test_what_was_not_measured_keeps_its_place(table, live):
    decision = choose(live, KeyTable(KEYS), costs=table)
    costs = costs_of(table, live)
    first = next(iter(costs))
    if costs[first] is None:
        assert decision.key == first
    else:
        assert costs[decision.key] is not None


@settings(max_examples=300)
@given(live=LIVES, max_padding=st.sampled_from([None, 1.0, 1.5]), blocked=st.sets(st.sampled_from(KEYS)))
def test_a_table_that_knows_nothing_changes_no_choice(live, max_padding, blocked):
    keys = KeyTable(KEYS, dict.fromkeys(blocked, Reason.QUARANTINED))
    without = choose(live, keys, max_padding=max_padding)
    empty = choose(live, keys, max_padding=max_padding, costs=CostTable())
    assert (empty.key, empty.reason, empty.cost_ms) == (without.key, without.reason, None)
    assert all(r.reason not in (Reason.MEASURED_SLOWER, Reason.LATER_IN_ORDER) for r in without.alternatives)
    assert without.cost_ms is None and all(r.cost_ms is None for r in without.alternatives)


@settings(max_examples=300)
@given(table=tables(), live=LIVES, data=st.data())
def test_noise_below_half_the_hysteresis_flips_no_clear_choice(table, live, data):
    """Clear: the others are dearer by the hysteresis twice over, or come later and are no cheaper (eager: dearer)."""
    before = choose(live, KeyTable(KEYS), costs=table)
    costs = costs_of(table, live)
    order = list(costs)
    for at, key in enumerate(order):
        if key == before.key:
            continue
        is_far = costs[key] > (1 + HYSTERESIS) ** 2 * before.cost_ms
        is_behind = at > order.index(before.key) and costs[key] >= before.cost_ms * (1 if key else 1 + HYSTERESIS)
        assume(is_far or is_behind)
    noise = st.floats(1 - 0.49 * HYSTERESIS, 1 + 0.49 * HYSTERESIS)
    # A curve at a time, as a clock that drifts does; each sample alone is in the test below.
    factor = {way: data.draw(noise) for way in WAYS}
    shaken = CostTable(tuple(dataclasses.replace(s, ms=s.ms * factor[s.way]) for s in table.samples))
    assert choose(live, KeyTable(KEYS), costs=shaken).key == before.key


@settings(max_examples=200)
@given(data=st.data())
def test_near_equal_graphs_keep_the_usual_order_whatever_the_noise(data):
    noise = st.floats(1 - 0.49 * HYSTERESIS, 1 + 0.49 * HYSTERESIS)
    sizes = (1, 2, 4, 8)
    curves = {(DECODE, way): {n: data.draw(noise) for n in sizes} for way in WAYS[1:]}
    table = table_of(curves | {(DECODE, "eager"): dict.fromkeys(sizes, 5.0)})
    for n in range(1, 9):
        live = LiveBatch(num_tokens=n, num_reqs=n, uniform_query_len=1)
        assert choose(live, KeyTable(KEYS), costs=table).key == choose(live, KeyTable(KEYS)).key


def prefill(tokens):
    return LiveBatch(num_tokens=tokens, num_reqs=1)


def test_padding_is_refused_by_cost_and_not_by_a_factor():
    """17 tokens in a bucket of 32 pay while launches dominate, and do not where the device's work does."""
    eager = {1: 5.0, 32: 5.2}
    bound_by_launches = table_of({(BatchKind(), "eager"): eager, (BatchKind(), "piecewise graph"): {4: 1.0, 32: 1.5}})
    bound_by_work = table_of(
        {(BatchKind(), "eager"): {1: 0.3, 32: 9.6}, (BatchKind(), "piecewise graph"): {4: 1.1, 32: 9.4}}
    )
    keys = KeyTable(KEYS)
    assert choose(prefill(17), keys, costs=bound_by_launches).key.num_tokens == 32
    decision = choose(prefill(17), keys, costs=bound_by_work)
    assert (decision.key, decision.reason) == (None, Reason.MEASURED_SLOWER)
    assert choose(prefill(31), keys, costs=bound_by_work).key is None
    assert choose(prefill(32), keys, costs=bound_by_work).key.num_tokens == 32
    assert "not PIECEWISE tokens=32: MEASURED_SLOWER (9.400 ms)" in str(decision)


def test_a_larger_bucket_that_is_faster_is_taken():
    table = table_of({(BatchKind(), "eager"): {1: 9.0}, (BatchKind(), "piecewise graph"): {4: 2.0, 8: 1.0, 16: 3.0}})
    decision = choose(prefill(3), KeyTable(KEYS), costs=table)
    assert (decision.key.num_tokens, decision.reason, decision.cost_ms) == (8, Reason.PADDED, 1.0)
    slower = next(r for r in decision.alternatives if r.key and r.key.num_tokens == 4)
    assert (slower.reason, slower.cost_ms) == (Reason.MEASURED_SLOWER, 2.0)


def test_the_users_own_padding_limit_still_holds():
    table = table_of({(BatchKind(), "eager"): {1: 9.0}, (BatchKind(), "piecewise graph"): {4: 1.0, 32: 1.0}})
    assert choose(prefill(5), KeyTable(KEYS), costs=table).key.num_tokens == 8
    decision = choose(prefill(5), KeyTable(KEYS), costs=table, max_padding=1.5)
    assert (decision.key, decision.reason) == (None, Reason.PADDING_COST)


def test_a_blocked_bucket_is_not_weighed():
    table = table_of({(BatchKind(), "eager"): {1: 9.0}, (BatchKind(), "piecewise graph"): {4: 1.0, 32: 2.0}})
    small = GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=4)
    decision = choose(prefill(3), KeyTable(KEYS, {small: Reason.QUARANTINED}), costs=table)
    assert decision.key.num_tokens == 8
    assert (str(small), Reason.QUARANTINED) in [(r.candidate, r.reason) for r in decision.alternatives]


def test_a_size_that_no_graph_holds_knows_what_eager_costs():
    table = table_of({(BatchKind(), "eager"): {1: 1.0, 40: 40.0}})
    decision = choose(prefill(40), KeyTable(KEYS), costs=table)
    assert (decision.reason, decision.cost_ms) == (Reason.OVER_LARGEST, 40.0)


def test_the_dispatcher_forgets_its_answers_with_the_table():
    dispatcher = Dispatcher(KEYS, bus=EventBus())
    for key in KEYS:
        dispatcher.mark_captured(key)
    live = prefill(3)
    before = dispatcher.decide(live)
    slow = table_of({(BatchKind(), "eager"): {1: 1.0}, (BatchKind(), "piecewise graph"): {4: 2.0}})
    dispatcher.use_costs(slow)
    assert dispatcher.costs is slow
    assert dispatcher.decide(live).reason is Reason.MEASURED_SLOWER
    assert dispatcher.decide(live) is dispatcher.decide(prefill(3)), "answers are cached"
    dispatcher.use_costs(None)
    assert dispatcher.decide(live) == before


@pytest.mark.parametrize("graph_ms", [1.0, 1.02])
def test_eager_is_preferred_by_however_little(graph_ms):
    table = table_of({(BatchKind(), "eager"): {1: 1.01}, (BatchKind(), "piecewise graph"): {4: graph_ms}})
    assert (choose(prefill(4), KeyTable(KEYS), costs=table).key is None) == (graph_ms > 1.01)
