"""Lines of JSON: what was written adds up to what was counted, steps wait for no disk, and nothing raises into them."""

import dataclasses
import io
import json
import threading
import time

import pytest

from ostinato.errors import ClosedError, ConfigError
from ostinato.telemetry import (
    EventBus,
    JsonLinesSink,
    KeyDropped,
    RequestPreempted,
    StepDispatched,
    Tally,
    read_json_lines,
)

STEP = StepDispatched(runtime_mode="FULL", bucket="4", reason="PADDED", live_tokens=3, padded_tokens=4)
PREEMPTED = RequestPreempted(request_id="a", computed_tokens=3)
NEVER = 3600.0


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def approximately(snapshot):
    """Sums of parts are rounded otherwise than one sum."""
    for row in snapshot["dispatch"]["buckets"]:
        for name in ("launch_seconds", "step_seconds"):
            row[name] = pytest.approx(row[name])
    return snapshot


@pytest.mark.parametrize("every_step", [False, True])
def test_what_was_written_adds_up_to_what_was_counted(tmp_path, traffic, every_step):
    path, tally = tmp_path / "events.jsonl", Tally()
    with JsonLinesSink(path, every_step=every_step, interval_s=NEVER) as sink:
        bus = EventBus(sink, tally)
        for number, event in enumerate(traffic):
            bus.emit(event)
            if number % 100 == 0:
                sink.flush()
    with open(path, encoding="utf-8") as file:
        found = read_json_lines(file)
    assert found.snapshot() == approximately(tally.snapshot())
    assert found.snapshot()["dispatch"]["steps"] == 600 and found.snapshot()["failures"]["failed_requests"] == 5
    assert (sink.num_dropped, bus.num_dropped) == (0, 0)
    num_steps = sum(line["event"] == "StepDispatched" for line in lines_of(path))
    assert num_steps == (600 if every_step else 0)


def test_a_line_has_its_time_its_name_and_its_fields(tmp_path):
    path, began = tmp_path / "events.jsonl", time.time()
    with JsonLinesSink(path, every_step=True) as sink:
        sink.emit(STEP)
        sink.emit(KeyDropped(key="k", reason="too large"))
    opened, step, dropped = lines_of(path)
    assert opened["event"] == "Opened" and began <= opened["time"] <= step["time"] <= dropped["time"] <= time.time()
    del step["time"], dropped["time"]
    assert step == {"event": "StepDispatched", **dataclasses.asdict(STEP)}
    assert dropped == {"event": "KeyDropped", "key": "k", "reason": "too large"}


def test_steps_are_summed_over_the_interval_and_the_rest_comes_at_once(tmp_path):
    path = tmp_path / "events.jsonl"
    with JsonLinesSink(path, interval_s=NEVER) as sink:
        for _ in range(5000):
            sink.emit(STEP)
        time.sleep(0.1)
        assert len(lines_of(path)) == 1, "steps wait"
        sink.emit(PREEMPTED)
        deadline = time.monotonic() + 10
        while len(lines_of(path)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [line["event"] for line in lines_of(path)] == ["Opened", "RequestPreempted", "Steps"]
        assert lines_of(path)[2]["steps"] == 5000
    assert len(lines_of(path)) == 3


def test_an_idle_engine_s_steps_are_written_too(tmp_path):
    path = tmp_path / "events.jsonl"
    with JsonLinesSink(path, interval_s=0.02) as sink:
        sink.emit(STEP)
        deadline = time.monotonic() + 10
        while len(lines_of(path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lines_of(path)[1]["steps"] == 1, "nobody has to emit again, or to close"


def test_lines_are_appended_and_the_last_run_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    for num_steps in (7, 2):
        with JsonLinesSink(path) as sink:
            for _ in range(num_steps):
                sink.emit(STEP)
    assert sum(line["event"] == "Opened" for line in lines_of(path)) == 2
    assert read_json_lines(path.open(encoding="utf-8")).dispatch.steps == 2


def test_what_waits_is_bounded(tmp_path):
    path = tmp_path / "events.jsonl"
    with JsonLinesSink(path, capacity=3, every_step=True, interval_s=NEVER) as sink:
        for _ in range(10):
            sink.emit(STEP)
        assert sink.num_dropped == 7
    assert [line["event"] for line in lines_of(path)] == ["Opened", *["StepDispatched"] * 3, "Dropped"]
    assert lines_of(path)[-1]["num_events"] == 7
    assert read_json_lines(path.open(encoding="utf-8")).dispatch.steps == 3


def test_a_disk_that_fails_harms_nobody():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    with JsonLinesSink(Full(), interval_s=NEVER) as sink:
        bus = EventBus(sink)
        bus.emit(PREEMPTED)
        bus.emit(STEP)
        sink.flush()
        assert sink.num_dropped >= 2 and bus.num_dropped == 0


def test_a_closed_sink_is_counted_by_the_bus(tmp_path):
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    sink.close()
    sink.close()
    with pytest.raises(ClosedError):
        sink.emit(STEP)
    bus = EventBus(sink)
    bus.emit(STEP)
    assert bus.num_dropped == 1


def test_a_file_of_the_caller_stays_open():
    file = io.StringIO()
    with JsonLinesSink(file) as sink:
        sink.emit(STEP)
    assert not file.closed and file.getvalue().count("\n") == 2


def test_no_step_is_lost_between_threads(tmp_path):
    path = tmp_path / "events.jsonl"
    with JsonLinesSink(path, interval_s=0.01) as sink:
        threads = [threading.Thread(target=lambda: [sink.emit(STEP) for _ in range(5000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert read_json_lines(path.open(encoding="utf-8")).dispatch.steps == 20_000


@pytest.mark.parametrize(
    "bad",
    [
        {"interval_s": 0},
        {"interval_s": float("inf")},
        {"interval_s": "1"},
        {"capacity": 0},
        {"capacity": None},
    ],
)
def test_bad_settings(tmp_path, bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        JsonLinesSink(tmp_path / "x", **bad)


def test_an_unwritable_path_is_found_when_it_is_made(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        JsonLinesSink(tmp_path / "nowhere" / "events.jsonl")
    for path in (tmp_path, str(tmp_path / "a\0b")):
        with pytest.raises(ConfigError, match="cannot be written"):
            JsonLinesSink(path)
    for target in (None, 5, b"events.jsonl"):
        with pytest.raises(ConfigError, match="target is a"):
            JsonLinesSink(target)


def step_line(name, value):
    fields = {"runtime_mode": '"FULL"', "bucket": '"4"', "reason": '"PADDED"', "live_tokens": "3", "padded_tokens": "4"}
    return '{"event": "StepDispatched", ' + ", ".join(f'"{n}": {v}' for n, v in {**fields, name: value}.items()) + "}"


def steps_line(name, value):
    row = {"runtime_mode": '"FULL"', "bucket": '"4"', "reason": '"PADDED"', "hits": "1", "live_tokens": "3"}
    row |= {"padded_tokens": "4", "launch_seconds": "0.1", "step_seconds": "0", name: value}
    rows = "{" + ", ".join(f'"{n}": {v}' for n, v in row.items()) + "}"
    return (
        f'{{"event": "Steps", "buckets": [{rows}], "key_hits": {{}}, "histogram": {{"decode": {{}}, "mixed": {{}}}}}}'
    )


def test_lines_of_steps_are_read():
    lines = [step_line("live_reqs", "null"), steps_line("hits", "1")]
    assert read_json_lines(line + "\n" for line in lines).dispatch.steps == 2


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        "3",
        '{"a": 1}',
        '{"event": "Steps"}',
        '{"event": "Steps", "buckets": [{}], "key_hits": {}, "histogram": {"decode": {}, "mixed": {}}}',
        '{"event": "StepDispatched", "bucket": "4"}',
        step_line("live_tokens", "Infinity"),
        step_line("padded_tokens", "-1"),
        step_line("launch_seconds", '"long"'),
        step_line("live_reqs", "true"),
        steps_line("launch_seconds", "NaN"),
        steps_line("hits", "-1"),
    ],
)
def test_a_line_that_is_no_event_is_named(line):
    with pytest.raises(ConfigError, match=r"line 2 of steps\.txt is no event"):
        read_json_lines(['{"event": "Opened"}\n', line + "\n"], name="steps.txt")


def test_a_line_that_is_being_written_and_unknown_events_are_left_out():
    lines = ['{"event": "FromTheFuture", "x": 1}\n', "\n", '{"event": "RequestPreempted", "request_id": "a", "compu']
    assert read_json_lines(lines).snapshot() == Tally().snapshot()
    later = '{"event": "RequestPreempted", "request_id": "a", "computed_tokens": 1, "added_later": 2}\n'
    assert read_json_lines([later]).failures.preemptions == 1
