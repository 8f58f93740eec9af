"""Which graph comes next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.planning import next_to_capture


def decode(n: int, tier: int | None = None) -> GraphKey:
    return GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n, num_reqs=n, uniform_query_len=1, kv_tier=tier)


def mixed(n: int) -> GraphKey:
    return GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=n)


PENDING = [mixed(64), mixed(32), decode(8), decode(4), decode(1)]


def order(decode_steps: dict[int, int], mixed_steps: dict[int, int], **more: object) -> list[str]:
    pending, found = list(PENDING), []
    while pending:
        key = next_to_capture(pending, found, decode=decode_steps, mixed=mixed_steps, **more)  # type: ignore[arg-type]
        pending.remove(key)
        found.append(key)
    return [f"{key.kind} {key.num_tokens}" for key in found]


def test_without_traffic_the_largest_comes_first() -> None:
    assert order({}, {}) == ["piecewise 64", "piecewise 32", "full decode 8", "full decode 4", "full decode 1"]


def test_the_bucket_that_most_steps_wait_for_comes_first() -> None:
    found = order({1: 100, 3: 20, 7: 5}, {20: 50})
    assert found[0] == "full decode 8", "it holds all 125"
    assert found[1] in ("piecewise 32", "piecewise 64"), "fifty steps that still run eagerly"


def test_the_bucket_of_nearly_all_steps_does_not_come_last() -> None:
    pending, found = [decode(2**n) for n in range(9)], []
    while pending:
        key = next_to_capture(pending, found, decode={1: 100_000, 200: 1}, mixed={})
        pending.remove(key)
        found.append(key)
    assert found[0] == decode(1)
    assert found[1] == decode(256), "the only other that saves anything"


def test_padding_counts() -> None:
    assert next_to_capture([decode(128), decode(4)], [decode(256)], decode={3: 10, 100: 1}, mixed={}) == decode(4)


def test_measured_times_decide() -> None:
    def step_ms(graph: GraphKey | None, _like: GraphKey, size: int) -> float | None:
        if graph is None:
            return 2.0
        return {8: 1.999, 4: 1.0, 1: 1.9}.get(graph.num_tokens)  # mixed graphs were not measured

    found = order({1: 100, 3: 20, 7: 5}, {20: 50}, step_ms=step_ms)
    assert found[0] == "full decode 4"
    assert found.index("piecewise 32") < found.index("full decode 8")


def test_the_tier_for_every_context_comes_first() -> None:
    pending = [decode(4, 256), decode(4, 2048)]
    assert next_to_capture(pending, [], decode={4: 1}, mixed={}) == decode(4, 2048)


@given(
    decode_steps=st.dictionaries(st.integers(1, 9), st.integers(1, 50)),
    mixed_steps=st.dictionaries(st.integers(1, 70), st.integers(1, 50)),
)
def test_all_are_captured_in_the_end(decode_steps: dict[int, int], mixed_steps: dict[int, int]) -> None:
    assert sorted(order(decode_steps, mixed_steps)) == sorted(f"{k.kind} {k.num_tokens}" for k in PENDING)
