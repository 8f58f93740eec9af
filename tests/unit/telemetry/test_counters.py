"""Counters add up whatever the traffic."""

import json
import threading

from hypothesis import given
from hypothesis import strategies as st

from ostinato.telemetry import (
    CaptureFailed,
    DispatchCounters,
    GraphCaptured,
    GraphClosed,
    KeyQuarantined,
    KeysPlanned,
    RequestPreempted,
    StepDispatched,
    StepFinished,
)

STEPS = st.builds(
    lambda mode, bucket, reason, live, waste: StepDispatched(
        runtime_mode=mode, bucket=bucket, reason=reason, live_tokens=live, padded_tokens=live + waste
    ),
    st.sampled_from(["FULL", "EAGER"]),
    st.sampled_from(["-", "4", "8"]),
    st.sampled_from(["EXACT", "PADDED"]),
    st.integers(1, 64),
    st.integers(0, 16),
)


@given(st.lists(STEPS))
def test_every_table_has_the_same_total(steps):
    counters = DispatchCounters()
    for step in steps:
        counters.emit(step)
    found = counters.snapshot()
    assert found["steps"] == len(steps)
    assert sum(found["by_runtime_mode"].values()) == len(steps)
    assert sum(found["by_reason"].values()) == len(steps)
    assert sum(row["hits"] for row in found["buckets"]) == len(steps)
    assert found["live_tokens"] == sum(s.live_tokens for s in steps) == sum(r["live_tokens"] for r in found["buckets"])
    waste = sum(s.padded_tokens - s.live_tokens for s in steps)
    assert found["padded_tokens"] == waste == sum(r["padded_tokens"] for r in found["buckets"])


def test_the_histogram_is_what_the_planner_takes():
    from ostinato.runtime import TrafficHistogram

    counters = DispatchCounters()
    sizes = {"runtime_mode": "FULL", "bucket": "4", "reason": "PADDED", "padded_tokens": 64}
    for live, reqs, is_decode in ((3, 3, True), (3, 3, True), (6, 3, True), (40, 2, False), (5, None, False)):
        counters.emit(StepDispatched(live_tokens=live, live_reqs=reqs, is_decode=is_decode, **sizes))
    found = counters.snapshot()["histogram"]
    assert found == {"decode": {"3": 3}, "mixed": {"5": 1, "40": 1}}
    assert TrafficHistogram.from_dict(found).decode == {3: 3}


def test_other_events_are_not_counted_and_reset_forgets():
    counters = DispatchCounters()
    counters.emit(RequestPreempted(request_id="", computed_tokens=1))
    assert counters.steps == 0
    step = StepDispatched(runtime_mode="FULL", bucket="4", reason="PADDED", live_tokens=3, padded_tokens=4)
    counters.emit(step)
    assert counters.snapshot()["buckets"] == [
        {"runtime_mode": "FULL", "bucket": "4", "reason": "PADDED", "hits": 1, "live_tokens": 3, "padded_tokens": 1}
        | {"launch_seconds": 0.0, "step_seconds": 0.0}
    ]
    counters.reset()
    assert counters.snapshot() == DispatchCounters().snapshot()


def test_no_step_is_lost_between_threads():
    counters = DispatchCounters()
    step = StepDispatched(runtime_mode="FULL", bucket="4", reason="EXACT", live_tokens=4, padded_tokens=4)
    threads = [threading.Thread(target=lambda: [counters.emit(step) for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.steps == counters.snapshot()["buckets"][0]["hits"] == 20_000


FULL_4 = {"runtime_mode": "FULL", "bucket": "4", "reason": "PADDED", "live_tokens": 3, "padded_tokens": 4}


def test_seconds_are_those_of_their_row():
    counters = DispatchCounters()
    for seconds in (0.25, 0.5):
        counters.emit(StepDispatched(**FULL_4, launch_seconds=seconds))
    counters.emit(StepFinished(runtime_mode="FULL", bucket="4", reason="PADDED", seconds=2.0))
    counters.emit(StepFinished(runtime_mode="EAGER", bucket="-", reason="DISABLED", seconds=4.0))
    rows = {row["runtime_mode"]: row for row in counters.snapshot()["buckets"]}
    assert (rows["FULL"]["hits"], rows["FULL"]["launch_seconds"], rows["FULL"]["step_seconds"]) == (2, 0.75, 2.0)
    assert (rows["EAGER"]["hits"], rows["EAGER"]["step_seconds"]) == (0, 4.0)


def test_planned_keys_that_no_step_has_replayed_are_listed():
    counters = DispatchCounters()
    counters.emit(KeysPlanned(keys=("d", "c", "b", "a"), largest_tokens=8))
    for key in ("d", "c", "b"):
        counters.emit(GraphCaptured(key=key, seconds=0.1, segments=1, nodes=1))
    counters.emit(CaptureFailed(key="a", error="boom"))
    counters.emit(KeyQuarantined(key="b", found_by="qualify", what="", where=""))
    counters.emit(StepDispatched(**FULL_4, key="c"))
    counters.emit(StepDispatched(**FULL_4))  # eager: of no key
    found = counters.snapshot()
    assert found["never_hit"] == ["d", "b", "a"] and found["key_hits"] == {"c": 1}
    assert found["keys"] == {"captured": 2, "waiting": 0, "failed": 1, "quarantined": 1}
    counters.reset()
    assert counters.snapshot()["never_hit"] == ["d", "c", "b", "a"], "what is planned outlives what was counted"


def test_the_states_of_keys_follow_a_change_of_sizes():
    counters = DispatchCounters()
    counters.emit(KeysPlanned(keys=("b", "a"), largest_tokens=8))
    for key in ("b", "a", "new"):  # captured before it is planned
        counters.emit(GraphCaptured(key=key, seconds=0.1, segments=1, nodes=1))
    counters.emit(KeysPlanned(keys=("new", "b"), largest_tokens=8))
    counters.emit(GraphClosed(key="a", reason="retired"))
    assert counters.key_states == {"new": "captured", "b": "captured"}
    counters.emit(GraphClosed(key="b", reason="released"))
    assert counters.snapshot()["keys"]["waiting"] == 1


def test_a_key_may_retire_while_a_snapshot_is_taken():
    counters = DispatchCounters()

    class Hits(dict):
        def __missing__(self, key):  # as another thread would
            counters.emit(GraphClosed(key=key, reason="retired"))
            return 0

    counters.emit(KeysPlanned(keys=("b", "a"), largest_tokens=8))
    counters.key_hits = Hits()
    told = counters.snapshot()
    assert told["never_hit"] == ["b", "a"] and told["keys"]["waiting"] == 2


@given(st.lists(STEPS), st.integers(0, 20))
def test_what_two_have_counted_adds_up_to_what_one_counts(steps, cut):
    whole, first, second = DispatchCounters(), DispatchCounters(), DispatchCounters()
    for number, step in enumerate(steps):
        whole.emit(step)
        (first if number < cut else second).emit(step)
    added = DispatchCounters()
    for part in (first, second):
        added.add(json.loads(json.dumps(part.snapshot())))
    assert added.snapshot() == whole.snapshot()
