"""Which keys a mode plans, and that they come largest first."""

from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime.config import GraphConfig
from ostinato.runtime.keys import GraphKey, Mode, RuntimeMode
from ostinato.runtime.planning import plan_keys

FULL, PIECEWISE = RuntimeMode.FULL, RuntimeMode.PIECEWISE
PLAIN = GraphConfig(sizes=(2, 4))
REQUESTS = GraphConfig(sizes=(2, 8), decode_sizes=(1, 4), max_num_reqs=4)


def full(num_tokens, num_reqs=None, query_len=None, tier=None):
    return GraphKey(
        runtime_mode=FULL, num_tokens=num_tokens, num_reqs=num_reqs, uniform_query_len=query_len, kv_tier=tier
    )


def piecewise(num_tokens):
    return GraphKey(runtime_mode=PIECEWISE, num_tokens=num_tokens)


def test_plain_callables():
    assert plan_keys(PLAIN, Mode.NONE, max_size=4) == []
    assert plan_keys(PLAIN, Mode.FULL, max_size=4) == [full(4), full(2)]
    assert plan_keys(PLAIN, Mode.PIECEWISE, max_size=4) == [piecewise(4), piecewise(2)]


def test_callables_that_know_requests():
    decode = {full(4, 4, 1), full(1, 1, 1)}
    assert set(plan_keys(REQUESTS, Mode.FULL_DECODE_ONLY, max_size=8)) == decode
    assert set(plan_keys(REQUESTS, Mode.FULL_AND_PIECEWISE, max_size=8)) == decode | {piecewise(8), piecewise(2)}
    mixed = {full(8, 4), full(2, 2)}
    assert set(plan_keys(REQUESTS, Mode.FULL, max_size=8)) == decode | mixed


def test_small_mixed_batches_may_have_full_graphs_with_few_request_slots():
    config = GraphConfig(sizes=(2, 8, 16), decode_sizes=(1,), max_num_reqs=8, full_mixed_num_reqs=4)
    keys = plan_keys(config, Mode.FULL_AND_PIECEWISE, max_size=16, full_mixed_max_tokens=8)
    assert set(keys) == {full(1, 1, 1), full(2, 2), full(8, 4), piecewise(2), piecewise(8), piecewise(16)}
    assert full(2, 2) not in plan_keys(config, Mode.FULL_DECODE_ONLY, max_size=16, full_mixed_max_tokens=8)


def test_the_default_ladder_may_end_below_the_largest_step():
    config = GraphConfig(max_size=100, max_captured_size=20)
    assert max(key.num_tokens for key in plan_keys(config, Mode.PIECEWISE, max_size=100)) == 20
    assert max(key.num_tokens for key in plan_keys(config, Mode.PIECEWISE, max_size=10)) == 10


def test_query_lengths_and_tiers_multiply():
    config = GraphConfig(decode_sizes=(2,), max_num_reqs=2, uniform_query_lens=(1, 3), kv_tiers=(16, 64))
    keys = plan_keys(config, Mode.FULL_DECODE_ONLY, max_size=6)
    assert keys == [full(6, 2, 3, 64), full(6, 2, 3, 16), full(2, 2, 1, 64), full(2, 2, 1, 16)]


@given(
    mode=st.sampled_from([m for m in Mode if m is not Mode.AUTO]),
    max_size=st.integers(1, 300),
    max_num_reqs=st.none() | st.integers(1, 100),
    tiers=st.none() | st.lists(st.integers(1, 4096), min_size=1, max_size=3).map(tuple),
    query_lens=st.lists(st.integers(1, 5), min_size=1, max_size=2).map(tuple),
)
def test_largest_first_without_duplicates(mode, max_size, max_num_reqs, tiers, query_lens):
    config = GraphConfig(max_num_reqs=max_num_reqs, kv_tiers=tiers, uniform_query_lens=query_lens)
    keys = plan_keys(config, mode, max_size=max_size)
    assert len(set(keys)) == len(keys)
    sizes = [(key.num_tokens, key.kv_tier or 0) for key in keys]
    assert sizes == sorted(sizes, reverse=True)
    if mode in (Mode.PIECEWISE, Mode.FULL_AND_PIECEWISE) or (mode is Mode.FULL and max_num_reqs is None):
        assert max(key.num_tokens for key in keys if key.uniform_query_len is None) == max_size
    assert all(key.num_tokens <= max_size for key in keys)
    if mode is Mode.FULL_DECODE_ONLY and max_num_reqs is not None:
        fitting = {reqs for reqs in (1, max_num_reqs) if reqs * max(query_lens) <= max_size}
        assert {key.num_reqs for key in keys} >= fitting


def test_keys_that_no_step_could_use_are_dropped_and_told():
    dropped = {}
    keys = plan_keys(
        GraphConfig(decode_sizes=(2, 3, 4), max_num_reqs=4, size_multiple=2),
        Mode.FULL_DECODE_ONLY,
        max_size=3,
        on_drop=lambda key, why: dropped.update({key.num_tokens: why}),
    )
    assert [key.num_tokens for key in keys] == [2]
    assert dropped == {3: "3 tokens are no multiple of 2", 4: "4 tokens exceed the 3 of the largest step"}
