"""`ostinato demo` with a stand-in engine: what it prints, and that it notices a difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ostinato.cli.burst import burst
from ostinato.errors import OutOfMemoryError

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]


def test_it_runs_on_graphs_then_eagerly_with_the_same_traffic(fake_llm: Any, ostinato_command: Command) -> None:
    assert ostinato_command("demo", "--model", "m", "--device", "cpu") == 0
    graphs, eager = fake_llm.opened
    assert eager.config.mode == "none"
    assert graphs.config.mode != "none"
    assert (graphs.config.model, graphs.config.device) == ("m", "cpu")
    assert graphs.log == eager.log
    assert graphs.is_closed
    assert eager.is_closed


def test_people_see_answers_the_table_and_the_verdict(
    fake_llm: Any, ostinato_command: Command, capsys: Capture
) -> None:
    assert ostinato_command("demo") == 0
    out, err = capsys.readouterr()
    for arrival in burst(32):
        assert f"> {arrival.prompt}\n" in out
    assert "OVER_LARGEST" in out
    assert "2 graphs of 33 segments in all" in out
    last = out.rstrip().splitlines()[-1]
    assert last.startswith("graph output equals eager: ")
    assert last.endswith("of 8 requests are the same")
    assert "answer again, eagerly: 8 requests" in err


def test_json_is_one_object_and_nothing_else(fake_llm: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("demo", "--json", "--max-tokens", "4") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["outputs", "equals_eager", "different", "median_step_ms", "dispatch", "graphs", "config"]
    assert document["equals_eager"] is True
    assert document["different"] == []
    assert document["median_step_ms"].keys() == {"graphs", "eager"}
    assert len(document["outputs"]) == 8
    assert max(len(output["token_ids"]) for output in document["outputs"]) == 4


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_difference_is_named_and_the_exit_code_is_one(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(fake_llm, "eager_differs", True)
    assert ostinato_command("demo", *options) == 1
    out = capsys.readouterr().out
    if options:
        document = json.loads(out)
        assert document["equals_eager"] is False
        assert 1 in document["different"]
    else:
        assert "graph output differs from eager in requests 1, " in out


def test_bad_settings_load_nothing(fake_llm: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("demo", "--max-tokens", "0") == 2
    assert ostinato_command("demo", "--device", "tpu") == 2
    assert not fake_llm.opened


def test_an_engine_that_does_not_start(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_llm, "start_error", OutOfMemoryError("no room", fix="lower kv_tokens"))
    assert ostinato_command("demo", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "OST404"
