"""The promise of `choose`: the smallest usable key that fits the batch, or a reason."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import Dispatcher, KeyTable, Reason, Rejection, choose
from ostinato.runtime.keys import GraphKey, LiveBatch, Mode, RuntimeMode, Veto
from ostinato.runtime.planning import plan_keys
from ostinato.telemetry import EventBus

NONE, PIECE, FULL, DECODE, BOTH, _ = Mode


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple)
CONFIGS = st.builds(
    GraphConfig,
    sizes=SIZES,
    decode_sizes=st.none() | st.lists(st.integers(1, 8), min_size=1, max_size=3).map(tuple),
    max_num_reqs=st.none() | st.just(8),
    uniform_query_lens=st.sampled_from([(1,), (3,), (1, 2)]),
    kv_tiers=st.sampled_from([None, (16,), (16, 64)]),
)
MODES = st.sampled_from([NONE, PIECE, FULL, DECODE, BOTH])


@st.composite
def live_batches(draw):
    context = draw(st.none() | st.integers(1, 80))
    extra = {"num_active_loras": draw(st.sampled_from([0, 0, 0, 1])), "variant": draw(st.sampled_from(["", "", "x"]))}
    kind = draw(st.sampled_from(["plain", "mixed", "decode"]))
    if kind == "plain":
        return LiveBatch(num_tokens=draw(st.integers(1, 50)), context_tokens=context, **extra)
    reqs = draw(st.integers(1, 10))
    if kind == "mixed":
        tokens = draw(st.integers(reqs, 50))
        return LiveBatch(num_tokens=tokens, num_reqs=reqs, context_tokens=context, **extra)
    query_len = draw(st.integers(1, 3))
    return LiveBatch(
        num_tokens=reqs * query_len, num_reqs=reqs, uniform_query_len=query_len, context_tokens=context, **extra
    )


def is_usable(key, live, blocked, max_padding):
    """The definition, written out again: what a graph of ``key`` may be replayed for."""
    return (
        key not in blocked
        and key.num_tokens >= live.num_tokens
        and (key.num_reqs is None or (live.num_reqs is not None and key.num_reqs >= live.num_reqs))
        and (key.uniform_query_len is None or key.uniform_query_len == live.uniform_query_len)
        and (key.kv_tier is None or (live.context_tokens is not None and key.kv_tier >= live.context_tokens))
        and key.num_active_loras == live.num_active_loras
        and key.variant == live.variant
        and (key.runtime_mode is RuntimeMode.PIECEWISE or (key.num_reqs is None) == (live.num_reqs is None))
        and (max_padding is None or key.num_tokens <= max_padding * live.num_tokens)
    )


def rank(key):
    """Full decode, then full, then piecewise; the smallest first."""
    kind = 2 if key.runtime_mode is RuntimeMode.PIECEWISE else 0 if key.uniform_query_len is not None else 1
    return (kind, key.num_tokens, key.kv_tier or 0)


@settings(max_examples=400)
@given(config=CONFIGS, mode=MODES, live=live_batches(), max_padding=st.sampled_from([None, 1.0, 1.5]), data=st.data())
def test_the_smallest_usable_key_or_a_reason(config, mode, live, max_padding, data):
    keys = plan_keys(config, mode, max_size=40)
    blocked = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    table = KeyTable(keys, dict.fromkeys(blocked, Reason.CAPTURE_FAILED))
    decision = choose(live, table, max_padding=max_padding)
    usable = sorted((k for k in keys if is_usable(k, live, blocked, max_padding)), key=rank)
    assert decision.key == (usable[0] if usable else None)
    assert decision.live == live
    if decision.key is None:
        assert decision.runtime_mode is RuntimeMode.EAGER
        assert decision.reason not in (Reason.EXACT, Reason.PADDED)
        assert (decision.padded_tokens, decision.padded_reqs) == (live.num_tokens, live.num_reqs)
        assert decision.alternatives, "eager always says what it is not"
    else:
        is_exact = decision.key.num_tokens == live.num_tokens and decision.key.num_reqs in (None, live.num_reqs)
        assert decision.reason is (Reason.EXACT if is_exact else Reason.PADDED)
        assert decision.padded_tokens == decision.key.num_tokens


def table(mode, **settings):
    config = GraphConfig(**settings)
    return KeyTable(plan_keys(config, mode, max_size=8))


REQS = {"sizes": (4, 8), "decode_sizes": (1, 4), "max_num_reqs": 4}
DECODE_2 = LiveBatch(num_tokens=2, num_reqs=2, uniform_query_len=1, context_tokens=10)


@pytest.mark.parametrize(
    ("keys", "live", "reason"),
    [
        (table(NONE), LiveBatch(num_tokens=2), Reason.DISABLED),
        (table(FULL, sizes=(4, 8)), LiveBatch(num_tokens=9), Reason.OVER_LARGEST),
        (table(PIECE, **REQS), LiveBatch(num_tokens=9, num_reqs=3), Reason.OVER_LARGEST),
        (table(DECODE, **REQS), LiveBatch(num_tokens=5, num_reqs=2), Reason.NOT_UNIFORM),
        (table(DECODE, **REQS), LiveBatch(num_tokens=5, num_reqs=5, uniform_query_len=1), Reason.OVER_LARGEST),
        (table(DECODE, **REQS), LiveBatch(num_tokens=4, num_reqs=2, uniform_query_len=2), Reason.OVER_LARGEST),
        (table(DECODE, kv_tiers=(8,), **REQS), DECODE_2, Reason.OVER_LARGEST),
        (table(FULL, sizes=(4, 8)), LiveBatch(num_tokens=2, variant="draft"), Reason.VARIANT),
        (table(FULL, sizes=(4, 8)), LiveBatch(num_tokens=2, num_active_loras=1), Reason.LORA),
    ],
)
def test_reasons_for_eager(keys, live, reason):
    decision = choose(live, keys)
    assert decision.runtime_mode is RuntimeMode.EAGER
    assert decision.reason is reason


def test_a_one_token_prompt_is_no_decode():
    """PITFALLS: a prompt of exactly that many tokens has the shape of a decode; only its state tells."""
    keys = table(DECODE, **REQS)
    assert choose(LiveBatch(num_tokens=2, num_reqs=2), keys).reason is Reason.NOT_UNIFORM
    assert choose(DECODE_2, keys).key.uniform_query_len == 1


def test_a_blocked_bucket_is_stepped_over_and_named():
    keys = table(FULL, sizes=(4, 8))
    small = next(key for key in keys.keys if key.num_tokens == 4)
    keys.blocked[small] = Reason.QUARANTINED
    decision = choose(LiveBatch(num_tokens=3), keys)
    assert decision.key.num_tokens == 8
    assert [(r.candidate, r.reason) for r in decision.alternatives] == [(str(small), Reason.QUARANTINED)]


def test_the_smallest_sufficient_tier():
    keys = table(DECODE, kv_tiers=(8, 16, 64), **REQS)
    assert choose(DECODE_2, keys).key.kv_tier == 16


@pytest.mark.parametrize(
    "live",
    [
        LiveBatch(num_tokens=2, num_reqs=2, uniform_query_len=1),  # context unknown
        LiveBatch(num_tokens=2, uniform_query_len=1, context_tokens=4),  # requests unknown
        LiveBatch(num_tokens=9, num_reqs=2, uniform_query_len=1, context_tokens=4),  # contradicts itself
    ],
)
def test_a_size_that_is_unknown_or_too_large_fits_no_limit(live):
    assert choose(live, table(DECODE, kv_tiers=(8,), **REQS)).key is None


def test_padding_may_cost_too_much():
    keys = table(FULL, sizes=(4, 8))
    assert choose(LiveBatch(num_tokens=5), keys, max_padding=1.5).reason is Reason.PADDING_COST
    assert choose(LiveBatch(num_tokens=6), keys, max_padding=1.5).key.num_tokens == 8


def test_full_decode_falls_to_piecewise():
    decision = choose(LiveBatch(num_tokens=5, num_reqs=2), table(BOTH, **REQS))
    assert decision.runtime_mode is RuntimeMode.PIECEWISE
    assert decision.key == GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=8)
    assert (decision.padded_tokens, decision.padded_reqs) == (8, 2)
    assert decision.alternatives[0].reason is Reason.NOT_UNIFORM


# --- vetoes (a step forbids its own graphs) ---------------------------------------------------------


def vetoed(live, veto, why="cascade attention"):
    return dataclasses.replace(live, veto=veto, veto_reason=why)


def test_a_veto_on_full_graphs_leaves_piecewise_ones():
    keys = table(BOTH, **REQS)
    assert choose(DECODE_2, keys).runtime_mode is RuntimeMode.FULL
    decision = choose(vetoed(DECODE_2, Veto.FULL), keys)
    assert decision.key == GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=4)
    assert decision.reason is Reason.PADDED
    assert decision.alternatives[0] == Rejection("full decode graph", Reason.VETOED, "cascade attention")
    assert "not full decode graph: VETOED (cascade attention)" in str(decision)


@pytest.mark.parametrize("mode", [PIECE, FULL, DECODE, BOTH])
def test_a_veto_on_all_graphs_is_eager(mode):
    decision = choose(vetoed(DECODE_2, Veto.GRAPHS), table(mode, **REQS))
    assert (decision.runtime_mode, decision.key, decision.reason) == (RuntimeMode.EAGER, None, Reason.VETOED)
    assert all(r.detail == "cascade attention" for r in decision.alternatives if r.reason is Reason.VETOED)


@pytest.mark.parametrize("mode", [FULL, DECODE])
def test_a_veto_on_full_graphs_is_eager_where_there_are_no_others(mode):
    decision = choose(vetoed(DECODE_2, Veto.FULL), table(mode, **REQS))
    assert (decision.key, decision.reason) == (None, Reason.VETOED)


def test_a_veto_by_its_name():
    """A string that equals the member must not be passed over."""
    assert choose(vetoed(DECODE_2, "full"), table(BOTH, **REQS)).runtime_mode is RuntimeMode.PIECEWISE
    assert choose(vetoed(DECODE_2, "graphs"), table(BOTH, **REQS)).runtime_mode is RuntimeMode.EAGER


def test_a_veto_is_one_steps_own():
    keys = table(BOTH, **REQS)
    dispatcher = Dispatcher(keys.keys, bus=EventBus())
    for key in keys.keys:
        dispatcher.mark_captured(key)
    assert dispatcher.decide(vetoed(DECODE_2, Veto.FULL)).runtime_mode is RuntimeMode.PIECEWISE
    assert dispatcher.decide(DECODE_2).runtime_mode is RuntimeMode.FULL, "answers are cached by batch and veto"
    other = dispatcher.decide(vetoed(DECODE_2, Veto.FULL, "special metadata"))
    assert other.alternatives[0].detail == "special metadata"


@settings(max_examples=200)
@given(config=CONFIGS, mode=MODES, live=live_batches(), veto=st.sampled_from([Veto.FULL, Veto.GRAPHS]))
def test_a_veto_takes_candidates_away_and_adds_none(config, mode, live, veto):
    keys = KeyTable(plan_keys(config, mode, max_size=40))
    free, bound = choose(live, keys), choose(vetoed(live, veto), keys)
    if veto is Veto.GRAPHS:
        assert bound.key is None
    elif free.key is None or free.runtime_mode is RuntimeMode.PIECEWISE:
        assert bound.key == free.key
    else:
        assert bound.runtime_mode in (RuntimeMode.PIECEWISE, RuntimeMode.EAGER)
    if bound.key is None and keys.keys and free.key is not None:
        assert bound.reason is not Reason.DISABLED


# --- padding off ------------------------------------------------------------------------------------


def test_exact_sizes_only():
    config = GraphConfig(sizes=(4, 8), padding=False)
    keys = KeyTable(plan_keys(config, FULL, max_size=8))
    exact = choose(LiveBatch(num_tokens=4), keys, max_padding=config.padding_limit)
    assert (exact.key.num_tokens, exact.reason) == (4, Reason.EXACT)
    for tokens in (3, 5, 7):
        decision = choose(LiveBatch(num_tokens=tokens), keys, max_padding=config.padding_limit)
        assert (decision.key, decision.reason) == (None, Reason.PADDING_OFF)
    over = choose(LiveBatch(num_tokens=9), keys, max_padding=config.padding_limit)
    assert over.reason is Reason.OVER_LARGEST


def test_padding_off_wins_over_a_limit():
    assert GraphConfig(padding=False, max_padding=4.0).padding_limit == 1.0
    assert GraphConfig(max_padding=4.0).padding_limit == 4.0
    assert GraphConfig().padding_limit is None
