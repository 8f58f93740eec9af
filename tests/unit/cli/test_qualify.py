"""`ostinato qualify`: a table and JSON of a real tiny model, exit codes, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.testing.engine_faults import ENGINE_FAULTS
from ostinato.testing.tiny_models import write_tiny_model

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), has_weights=False, has_tokenizer=False)
    sizes = ["--max-num-reqs", "2", "--max-num-batched-tokens", "4", "--max-model-len", "32"]
    return ["qualify", "--model", str(folder), "--load-format", "dummy", "--device", "cpu", *sizes]


def test_all_pass(ostinato_command: Command, capsys: Capture, options: list[str]) -> None:
    assert ostinato_command(*options) == 0
    out, err = capsys.readouterr()
    assert "all 3 keys pass" in out and "bit for bit" in out
    assert "pass  PIECEWISE tokens=4" in err, "keys are told as they are done"


def test_json_is_one_object(ostinato_command: Command, capsys: Capture, options: list[str]) -> None:
    assert ostinato_command(*options, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passed"], report["backend"], report["bitwise"]) == (True, "simulated", True)
    assert report["model"] == options[2]
    assert report["made"]["config"]["device"] == "cpu" and report["made"]["versions"]["torch"]
    assert [key["key"].split()[0] for key in report["keys"]] == ["PIECEWISE", "FULL", "FULL"]
    for key in report["keys"]:
        assert key["passed"] and key["cases"] >= 2 and key["max_gap"] == 0.0 and key["state_tensors"] == 6


DECODE = "FULL tokens=2 reqs=2 query_len=1 kv_tier=32"
PLANTED = [  # row, what the first line of a finding says, the keys that pass
    (3, "PIECEWISE tokens=4: DIFFERS: live output", [False, True, True]),
    (8, f"{DECODE}: BAKED_VALUE: ", [True, False, False]),
    (11, f"{DECODE}: STATE_WRITES: state keys of layer 0", [True, False, True]),
    (13, f"{DECODE}: PADDING_LEAKS: live output", [True, False, True]),
]


@pytest.mark.parametrize(("row", "told", "passed"), PLANTED)
def test_a_fault_in_the_engine_is_told(
    ostinato_command: Command, capsys: Capture, options: list[str], row: int, told: str, passed: list[bool]
) -> None:
    with ENGINE_FAULTS[row]():
        assert ostinato_command(*options) == 1
        out, err = capsys.readouterr()
        assert f"{passed.count(False)} of 3 keys quarantined" in out and told in out
        assert err.count("FAIL  ") == passed.count(False)
        assert ostinato_command(*options, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False and [key["passed"] for key in report["keys"]] == passed


def test_every_planted_fault_is_tried() -> None:
    assert [row for row, *_ in PLANTED] == list(ENGINE_FAULTS) == [3, 8, 11, 13]


def test_no_graphs(ostinato_command: Command, capsys: Capture, options: list[str]) -> None:
    assert ostinato_command(*options, "--mode", "none") == 1, "nothing was tried, so nothing has passed"
    assert "mode none has no graphs here, so none was tried: see `ostinato explain`" in capsys.readouterr().out
    assert ostinato_command(*options, "--mode", "none", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["passed"], report["keys"]) == (False, [])


def test_every_option_reaches_the_engine(ostinato_command: Command, fake_llm: Any, monkeypatch: Any) -> None:
    class Report:
        passed = True

        def to_dict(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(fake_llm, "qualify", lambda self, on_key: Report(), raising=False)
    args = "--model m --mode piecewise --partition fx --compile inductor --device cpu --dtype float32 --attention torch"
    assert ostinato_command("qualify", *args.split(), "--seed", "3", "--json") == 0
    (config,) = [llm.config for llm in fake_llm.opened]
    assert (config.model, config.mode, config.partition, config.compile) == ("m", "piecewise", "fx", "inductor")
    assert (config.device, config.dtype, config.attention, config.seed) == ("cpu", "float32", "torch", 3)
    assert (config.max_num_reqs, config.max_num_batched_tokens, config.max_model_len) == (4, 32, 512)


def test_sizes_are_qualified(ostinato_command: Command, capsys: Capture, options: list[str], tmp_path: Path) -> None:
    """Where no limits are given, they are as large as the sizes."""
    path = tmp_path / "sizes.json"
    path.write_text('{"decode_sizes": [5], "token_sizes": [40]}')
    unlimited = [*options[: options.index("--max-num-reqs")], "--max-model-len", "32", "--json"]
    for sizes in (["--decode-sizes", "5", "--token-sizes", "40"], ["--config", str(path)]):
        assert ostinato_command(*unlimited, *sizes) == 0
        report = json.loads(capsys.readouterr().out)
        assert [key["key"][:20] for key in report["keys"]] == ["PIECEWISE tokens=40", "FULL tokens=5 reqs=5"]
        config = report["made"]["config"]
        assert (config["max_num_reqs"], config["max_num_batched_tokens"]) == (5, 40)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"capture": "background"}, "qualify compares captured graphs"),
        ({"decode_sizes": [3]}, "'decode_sizes' must be <= --max-num-reqs (2), got 3"),
        ({"seed": 1}, "give --seed instead"),
    ],
)
def test_settings_that_do_not_go(
    ostinato_command: Command,
    capsys: Capture,
    options: list[str],
    tmp_path: Path,
    settings: dict[str, Any],
    words: str,
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings))
    assert ostinato_command(*options, "--config", str(path)) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--decode-sizes", "3"], "--decode-sizes must be <= --max-num-reqs (2), got 3"),
        (["--mode", "piecewize"], "did you mean 'piecewise'"),
        (["--max-num-reqs", "0"], "must be an integer >= 1"),
        (
            ["--max-num-reqs", "8", "--max-num-batched-tokens", "4"],
            "--max-num-reqs must be <= --max-num-batched-tokens (4), got 8",
        ),
        (["--max-model-len", "100000"], "--max-model-len"),
        (["--seed", "-1"], "seed"),
        (["--no-such-option"], ""),
        (["stray"], ""),
    ],
)
def test_bad_input(
    ostinato_command: Command, capsys: Capture, options: list[str], extra: list[str], words: str
) -> None:
    assert ostinato_command(*options, *extra) == 2
    out, err = capsys.readouterr()
    assert words in out + err and "Traceback" not in err
