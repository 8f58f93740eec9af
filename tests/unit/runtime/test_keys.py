"""Keys and batches are plain values: equal by content, hashable, readable."""

import dataclasses

import pytest

from ostinato.runtime.keys import CaptureSupport, GraphKey, LiveBatch, RuntimeMode


def test_keys_are_values():
    one = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4, num_reqs=4)
    assert one == dataclasses.replace(one)
    assert len({one, dataclasses.replace(one), dataclasses.replace(one, kv_tier=16)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.num_tokens = 8


def test_text_names_only_what_is_limited():
    assert str(GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=8)) == "PIECEWISE tokens=8"
    key = GraphKey(
        runtime_mode=RuntimeMode.FULL,
        num_tokens=8,
        num_reqs=4,
        uniform_query_len=2,
        kv_tier=512,
        num_active_loras=1,
        variant="draft",
    )
    assert str(key) == "FULL tokens=8 reqs=4 query_len=2 kv_tier=512 loras=1 variant=draft"


def test_live_batches_are_cache_keys():
    assert {LiveBatch(num_tokens=3): 1}[LiveBatch(num_tokens=3)] == 1
    assert LiveBatch(num_tokens=3, uniform_query_len=1) != LiveBatch(num_tokens=3)


def test_support_levels_are_ordered():
    assert (
        CaptureSupport.NEVER
        < CaptureSupport.UNIFORM_SINGLE_TOKEN_DECODE
        < CaptureSupport.UNIFORM_BATCH
        < CaptureSupport.ALWAYS
    )


@pytest.mark.parametrize(
    "key",
    [
        GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=64),
        GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=8, num_reqs=4, uniform_query_len=2, kv_tier=256),
        GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=8, num_active_loras=3, variant="a b=c variant=d"),
    ],
    ids=str,
)
def test_a_key_can_be_read_from_its_text(key: GraphKey) -> None:
    assert GraphKey.parse(str(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        *("", "FULL", "FULL reqs=3", "FUL tokens=3", "FULL tokens=x", "FULL tokens=3 more=4", "FULL tokens=3 reqs"),
        *("FULL tokens=0", "FULL tokens=-3", "FULL tokens=3 reqs=0", f"FULL tokens={10**400}"),
    ],
)
def test_other_text_is_no_key(text: str) -> None:
    with pytest.raises(ValueError):
        GraphKey.parse(text)
