"""`ostinato memory`: tables and JSON of a tiny model, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.testing.tiny_models import write_tiny_model

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]
LIMITS = ("--device", "cpu", "--max-num-reqs", "4", "--max-model-len", "64")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def test_json(tiny: str, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("memory", "--model", tiny, *LIMITS, "--measure", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kv_tokens"] == 4 * 64
    owners = ["weights", "KV cache", "logits", "sampling state", "attention workspaces", "static buffers", "bridges"]
    assert list(found["predicted"]) == [*owners, "graph pool", "executables", "total"] == list(found["measured"])
    for ledger in (found["predicted"], found["measured"]):
        assert ledger["total"] == sum(n for owner, n in ledger.items() if owner != "total") > 0
        assert min(ledger.values()) >= 0
    assert 0 < found["sample_captures"] <= found["graphs"]
    assert {"name", "formula", "num_bytes"} == set(found["formulas"][0])
    assert found["device"] is None, "a CPU has no allocator to explain"
    made = found["made"]
    assert set(made) == {"command", "date", "hardware", "versions", "config"}
    assert made["config"]["max_num_reqs"] == 4 and made["config"]["dtype"] == "float32", "resolved"
    assert tiny not in json.dumps(made)


def test_tables(tiny: str, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("memory", "--model", tiny, *LIMITS, "--explain") == 0
    shown = capsys.readouterr().out
    for word in ("predicted", "KV cache", "graph pool", "total", "256 KV tokens", "vocabulary x", "KV heads"):
        assert word in shown
    assert "difference" not in shown


def test_the_difference(tiny: str, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("memory", "--model", tiny, *LIMITS, "--measure") == 0
    shown = capsys.readouterr().out
    assert "difference" in shown and "none of them shared" in shown


def test_settings_are_told_as_they_became(tiny: str, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("memory", "--model", tiny, *LIMITS, "--compile", "inductor", "--json") == 0
    assert json.loads(capsys.readouterr().out)["made"]["config"]["compile"] == "none"


def test_sizes_are_weighed(tiny: str, ostinato_command: Command, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "sizes.json"
    path.write_text('{"decode_sizes": [1, 3], "token_sizes": [16]}')
    found = []
    budget = ["--budget-mib", "100"]  # else it is what happens to be free
    for options in (["--decode-sizes", "1,3", "--token-sizes", "16"], ["--config", str(path)]):
        assert ostinato_command("memory", "--model", tiny, *LIMITS, *budget, *options, "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
        del found[-1]["made"]["command"]
    assert found[0] == found[1]
    assert (found[0]["graphs"], found[0]["made"]["config"]["decode_sizes"]) == (3, [1, 3])
    few = ["--decode-sizes", "3", "--token-sizes", "16"]
    assert ostinato_command("memory", "--model", tiny, *LIMITS, *few, "--json") == 0
    assert json.loads(capsys.readouterr().out)["graphs"] == 2


def test_shared_executables_are_fewer(tiny: str, ostinato_command: Command, capsys: Capture) -> None:
    counts = {}
    for setting in ("own", "shared"):
        assert (
            ostinato_command("memory", "--model", tiny, *LIMITS, "--executables", setting, "--measure", "--json") == 0
        )
        counts[setting] = json.loads(capsys.readouterr().out)["executables"]
    own, shared = counts["own"], counts["shared"]
    assert own["shared_groups"] == 0 < shared["shared_groups"]
    assert shared["count"] < own["count"] and shared["nodes"] < own["nodes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--executables", "none"), "unknown executables"),
        (("--budget-mib", "0"), "--budget-mib is 0"),
        (("--budget-mib", "1e308"), "--budget-mib is 1e+308"),
        (("--budget-mib", "1.3"), "--max-num-reqs gives"),
        (("--budget-mib", "1.3"), "each graph less of --decode-sizes or --token-sizes about"),
        (("--decode-sizes", "5"), "--decode-sizes must be <= --max-num-reqs (4), got 5"),
        (("--token-sizes", "1,x"), "'1,x' are no sizes"),
        (("--kv-tokens", "1"), "--kv-tokens"),
        (("--mode", "ful"), "unknown mode"),
    ],
)
def test_bad_input(
    tiny: str, ostinato_command: Command, capsys: Capture, arguments: tuple[str, ...], words: str
) -> None:
    assert ostinato_command("memory", "--model", tiny, *LIMITS, *arguments) == 2
    assert words in capsys.readouterr().err


def test_weights_above_the_budget_are_not_loaded(
    tiny: str, ostinato_command: Command, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.engine.execution.loading.build_model", lambda *_, **__: pytest.fail("it was built"))
    assert ostinato_command("memory", "--model", tiny, *LIMITS, "--budget-mib", "0.1") == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "OST404" in err and "the weights alone need" in err and "the budget is 0.1 MiB" in err
    assert "MiB, which weights and the KV cache of one request take" in err
    assert ostinato_command("memory", "--model", tiny, *LIMITS, "--budget-mib", "0.1", "--kv-tokens", "64") == 2
    assert "the KV cache of --kv-tokens take" in " ".join(capsys.readouterr().err.split())


def test_no_such_model(ostinato_command: Command, capsys: Capture, tmp_path: Path) -> None:
    assert ostinato_command("memory", "--model", str(tmp_path / "none")) == 2
    assert "none" in capsys.readouterr().err
