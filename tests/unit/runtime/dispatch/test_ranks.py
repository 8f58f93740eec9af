"""All ranks decide alike, and the key holds what each of them brings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.runtime.dispatch import agree_on
from ostinato.runtime.dispatch.policy import KeyTable, choose
from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode, Veto

KEYS = [
    *(GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=n) for n in (4, 8, 16)),
    *(
        GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n, num_reqs=n, uniform_query_len=1, kv_tier=tier)
        for n in (2, 4, 8)
        for tier in (64, 256)
    ),
]


def decode(num_reqs, **more):
    return LiveBatch(num_tokens=num_reqs, num_reqs=num_reqs, uniform_query_len=1, context_tokens=10, **more)


@st.composite
def live_batches(draw):
    num_reqs = draw(st.integers(1, 8))
    if draw(st.booleans()):
        return LiveBatch(
            num_tokens=num_reqs, num_reqs=num_reqs, uniform_query_len=1, context_tokens=draw(st.integers(1, 300))
        )
    return LiveBatch(
        num_tokens=draw(st.integers(num_reqs, 16)), num_reqs=num_reqs, context_tokens=draw(st.integers(1, 300))
    )


@given(st.lists(live_batches(), min_size=1, max_size=5), st.randoms())
def test_the_key_holds_every_rank_whatever_their_order(lives, random):
    agreed = agree_on(lives)
    key = choose(agreed, KeyTable(KEYS)).key
    if key is not None:
        for live in lives:
            assert key.num_tokens >= live.num_tokens
            assert key.num_reqs is None or key.num_reqs >= live.num_reqs
            assert key.kv_tier is None or key.kv_tier >= live.context_tokens
            assert key.uniform_query_len in (None, live.uniform_query_len)
    shuffled = list(lives)
    random.shuffle(shuffled)
    assert agree_on(shuffled) == agreed
    assert agree_on([agreed] * 3) == agreed


def test_one_prefill_makes_the_step_mixed_for_all():
    mixed = LiveBatch(num_tokens=9, num_reqs=2, context_tokens=10)
    agreed = agree_on([decode(4), mixed])
    assert (agreed.num_tokens, agreed.num_reqs, agreed.uniform_query_len) == (9, 4, None)
    assert choose(agreed, KeyTable(KEYS)).key == GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=16)


def test_an_idle_rank_goes_along():
    assert agree_on([decode(4), LiveBatch(num_tokens=0, num_reqs=0)]) == decode(4)
    idle = LiveBatch(num_tokens=0, num_reqs=0)
    assert agree_on([idle, idle]) == idle


def test_a_veto_of_one_is_a_veto_of_all():
    agreed = agree_on([decode(2, veto=Veto.FULL, veto_reason="cascade"), decode(2), decode(2, veto=Veto.GRAPHS)])
    assert agreed.veto is Veto.GRAPHS
    agreed = agree_on([decode(2), decode(2, veto=Veto.FULL, veto_reason="cascade")])
    assert (agreed.veto, agreed.veto_reason) == (Veto.FULL, "rank 1: cascade")


def test_different_variants_run_eagerly_and_say_why():
    decision = choose(agree_on([decode(2, variant="a"), decode(2, variant="b")]), KeyTable(KEYS))
    assert decision.runtime_mode is RuntimeMode.EAGER
    assert "different variants: 'a', 'b'" in decision.alternatives[0].detail


def test_a_size_left_open_stays_open():
    assert agree_on([LiveBatch(num_tokens=3), decode(2)]).num_reqs is None


def test_no_ranks():
    with pytest.raises(ConfigError):
        agree_on([])


@pytest.mark.parametrize("lives", [3, None, [1], []])
def test_what_is_no_list_of_batches_is_refused(lives):
    with pytest.raises(ConfigError, match="no ranks to agree"):
        agree_on(lives)
