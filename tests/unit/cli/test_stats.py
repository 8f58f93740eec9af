"""``ostinato stats``: files and endpoints read alike, and sources that are none."""

from __future__ import annotations

import io
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ostinato.cli import stats as module
from ostinato.telemetry import (
    Event,
    EventBus,
    GraphCaptured,
    JsonLinesSink,
    KeysPlanned,
    PrometheusSink,
    RequestPreempted,
    StepDispatched,
    StepFinished,
    Tally,
)

Command = Callable[..., int]
PADDED = {"runtime_mode": "FULL", "bucket": "4/256", "reason": "PADDED"}
EVENTS: list[Event] = [
    KeysPlanned(keys=("FULL tokens=8", "FULL tokens=4"), largest_tokens=8),
    GraphCaptured(key="FULL tokens=4", seconds=0.1, segments=1, nodes=1),
    StepDispatched(**PADDED, live_tokens=3, padded_tokens=4, key="FULL tokens=4", launch_seconds=0.25),
    StepFinished(**PADDED, seconds=0.5),
    RequestPreempted(request_id="a", computed_tokens=3),
]

STEPS_METRIC = b"# TYPE ostinato_steps_total counter\nostinato_steps_total 1\n"


@pytest.fixture
def tally() -> Tally:
    found = Tally()
    for event in EVENTS:
        found.emit(event)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    with JsonLinesSink(path) as sink:
        for event in EVENTS:
            EventBus(sink).emit(event)
    return path


def test_a_file_and_an_endpoint_give_what_was_counted(
    file: Path, tally: Tally, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("stats", str(file), "--json") == 0
    expected = tally.snapshot()
    assert json.loads(capsys.readouterr().out) == {"source": str(file), **expected}
    del expected["dispatch"]["histogram"]
    with PrometheusSink() as sink:
        for event in EVENTS:
            sink.emit(event)
        url = f"http://127.0.0.1:{sink.serve(0)}/metrics"
        assert ostinato_command("stats", url, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"source": url, **expected}


def test_people_see_a_table_and_what_to_look_at(
    file: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("stats", str(file)) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if "4/256" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == (
        ["FULL", "4/256", "PADDED", "1", "3", "1", "25 %", "100 %", "250.000", "500.000"]
    )
    assert "keys: 1 captured, 1 waiting\nnever hit (1): FULL tokens=8\nfailures: preemptions 1\n" in out


def test_watching_reads_again(
    file: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        with JsonLinesSink(file) as sink:
            sink.emit(EVENTS[2])
            sink.emit(EVENTS[2])

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert ostinato_command("stats", str(file), "--watch", "0.5", "--json") == 130
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["dispatch"]["steps"] for document in documents] == [1, 2]
    assert waits == [0.5, 0.5]


@pytest.fixture
def server() -> Iterator[Callable[[int, bytes], str]]:
    """``server(status, body)``: the address of a page that answers so."""
    servers: list[HTTPServer] = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *unused: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()  # seen closed soon
        return f"http://127.0.0.1:{servers[-1].server_address[1]}/metrics"

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"", "gives no answer"),
        (200, b"<html>hello</html>", "gives no metrics"),
        (200, b"theirs_total 1.0\n", "no metrics of Ostinato"),
        (200, b"\xff\xfe", "gives no answer"),
        (200, b"# TYPE ostinato_steps_total counter\nostinato_steps_total NaN\n", "other metrics than"),
        (200, STEPS_METRIC + b"# TYPE ostinato_keys gauge\nostinato_keys 1\n", "other metrics than"),
        (
            200,
            STEPS_METRIC + b"# TYPE ostinato_key_hits_total counter\nostinato_key_hits_total 1\n",
            "other metrics than",
        ),
    ],
)
def test_a_page_that_is_no_endpoint(
    server: Callable[[int, bytes], str],
    ostinato_command: Command,
    capsys: pytest.CaptureFixture[str],
    status: int,
    body: bytes,
    words: str,
) -> None:
    assert ostinato_command("stats", server(status, body)) == 2
    assert words in capsys.readouterr().err


def test_nobody_answers(ostinato_command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/metrics", "http://", "http://[::1/metrics"):
        assert ostinato_command("stats", url, "--json") == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "OST100" and "gives no answer" in error["message"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"{}\n", "line 1 of"),
        (b"\xff\n", "cannot be read"),
        (b"steps\n", "is no event"),
        (b"[" * 100_000 + b"\n", "is no event"),
        (b'{"event": "Steps", "buckets": [%s]}\n' % json.dumps({**PADDED, "hits": 1e999}).encode(), "is no event"),
        (b'{"event": "KeysPlanned", "keys": [5], "largest_tokens": 1}\n', "keys is [5]"),
        (b'{"event": "StepDispatched", "runtime_mode": 7}\n', "runtime_mode is 7"),
    ],
)
def test_a_file_that_is_none(
    tmp_path: Path,
    ostinato_command: Command,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    words: str,
) -> None:
    path = tmp_path / "events.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert ostinato_command("stats", str(path)) == 2
    assert words in capsys.readouterr().err


def test_a_page_that_never_ends(
    ostinato_command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, into: Any) -> int:
            now[0] += 1.0  # each part comes in time
            into[:2] = b"#\n"
            return 2

    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: io.BufferedReader(Endless()))
    assert ostinato_command("stats", "http://127.0.0.1/metrics") == 2
    assert "timed out" in capsys.readouterr().err and now[0] < 20
    now[0] = -math.inf
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    assert ostinato_command("stats", "http://127.0.0.1/metrics") == 2
    assert "more than 100 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "1e99"])
def test_watching_needs_a_time(
    file: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert ostinato_command("stats", str(file), f"--watch={seconds}") == 2
    assert "--watch is" in capsys.readouterr().err
