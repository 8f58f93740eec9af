"""Counters add up whatever the traffic."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from ostinato.telemetry import CaptureFailed, DispatchCounters, StepDispatched

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
    counters.emit(CaptureFailed(key="", error=""))
    assert counters.steps == 0
    step = StepDispatched(runtime_mode="FULL", bucket="4", reason="PADDED", live_tokens=3, padded_tokens=4)
    counters.emit(step)
    assert counters.snapshot()["buckets"] == [
        {"runtime_mode": "FULL", "bucket": "4", "reason": "PADDED", "hits": 1, "live_tokens": 3, "padded_tokens": 1}
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
