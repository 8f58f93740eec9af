"""`ostinato explain`: the modes table for a model's folder, one step, measured costs, its JSON, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.testing.tiny_models import write_tiny_model

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]
STEPS = ["decode", "mixed", "full_mixed_max_tokens"]
MODES = ["none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "auto"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with a config.json and nothing else."""
    return str(write_tiny_model(tmp_path / "tiny", "qwen3", has_weights=False, has_tokenizer=False))


@pytest.fixture
def explained(ostinato_command: Command, capsys: Capture, model: str) -> Callable[..., dict[str, Any]]:
    """``explained(*options)``: the JSON document for the model on the CPU."""

    def run(*options: str) -> dict[str, Any]:
        args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--json", *options]
        assert ostinato_command(*args) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return run


def test_json_is_the_documented_object(explained: Callable[..., dict[str, Any]], model: str) -> None:
    document = explained()
    assert list(document) == ["model", "family", "device", "attention", "asked", "resolved", "reasons", "modes", "made"]
    assert (document["model"], document["family"], document["device"]) == (model, "qwen3", "cpu")
    assert document["attention"] == {"name": "torch", "support": "UNIFORM_BATCH"}
    assert document["asked"] == {"mode": "auto", "partition": "breakable", "compile": "none"}
    assert document["resolved"] == {"mode": "full_and_piecewise", "partition": "breakable", "compile": "none"}
    assert document["reasons"] == ["attention supports UNIFORM_BATCH"]
    assert [row["asked"] for row in document["modes"]] == MODES
    for row in document["modes"]:
        assert list(row) == ["asked", "mode", "partition", "compile", "reasons", *STEPS]
        assert bool(row["reasons"]) == (row["asked"] != row["mode"])


def test_evidence_says_how_it_was_made(explained: Callable[..., dict[str, Any]], model: str) -> None:
    made = explained("--decode", "2")["made"]
    assert list(made) == ["command", "date", "hardware", "versions", "config"]
    assert made["command"][0] == "ostinato" and len(made["date"]) == 10 and made["hardware"]
    assert {"ostinato", "torch", "python"} <= set(made["versions"])
    assert made["config"]["mode"] == "auto" and made["config"]["model"] == Path(model).name, "no folders"


def test_what_steps_do_in_each_mode(explained: Callable[..., dict[str, Any]]) -> None:
    rows = {row["asked"]: (row["mode"], row["decode"], row["mixed"]) for row in explained()["modes"]}
    assert rows == {
        "none": ("none", "EAGER", "EAGER"),
        "piecewise": ("piecewise", "PIECEWISE", "PIECEWISE"),
        "full": ("full_and_piecewise", "FULL", "PIECEWISE"),  # torch attention holds no mixed batch in a graph
        "full_decode_only": ("full_decode_only", "FULL", "EAGER"),
        "full_and_piecewise": ("full_and_piecewise", "FULL", "PIECEWISE"),
        "auto": ("full_and_piecewise", "FULL", "PIECEWISE"),
    }


def test_partition_and_compiler_on_a_cpu(explained: Callable[..., dict[str, Any]]) -> None:
    document = explained("--mode", "piecewise", "--partition", "inductor", "--compile", "inductor")
    assert document["asked"] == {"mode": "piecewise", "partition": "inductor", "compile": "inductor"}
    assert document["resolved"] == {"mode": "piecewise", "partition": "fx", "compile": "none"}
    first, second = document["reasons"]
    assert first.startswith("partition inductor is fx")
    assert second.startswith("compile inductor is none")


def test_drafts(explained: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.engine.attention.torch_backend import TorchAttention
    from ostinato.runtime import CaptureSupport

    assert explained("--draft-length", "3")["resolved"]["mode"] == "full_and_piecewise"
    assert explained("--draft-length", "511")["resolved"]["mode"] == "full_and_piecewise", "one decode fills a step"
    monkeypatch.setattr(TorchAttention, "capture_support", CaptureSupport.UNIFORM_SINGLE_TOKEN_DECODE)
    assert explained()["resolved"]["mode"] == "full_and_piecewise"
    document = explained("--draft-length", "3")
    assert document["resolved"]["mode"] == "piecewise"
    assert "decode brings 4 tokens a request" in document["reasons"][0]


def test_adapters(explained: Callable[..., dict[str, Any]]) -> None:
    document = explained("--active-loras", "2", "--decode", "3")
    assert document["resolved"]["mode"] == "none"
    assert document["reasons"] == ["no graph is planned for 2 active adapters: such steps run eagerly"]
    assert {(row["decode"], row["mixed"]) for row in document["modes"]} == {("EAGER", "EAGER")}
    (decision,) = document["step"]["decisions"]
    assert (decision["runtime_mode"], decision["reason"]) == ("EAGER", "LORA")


def test_small_mixed_steps_that_have_full_graphs_are_told(
    ostinato_command: Command, capsys: Capture, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.engine.attention.torch_backend import TorchAttention
    from ostinato.engine.config import EngineConfig
    from ostinato.engine.execution.explain import explain_modes
    from ostinato.runtime import CaptureSupport

    config = EngineConfig(model=model, load_format="dummy", device="cpu", full_mixed_max_tokens=128)
    assert {row["full_mixed_max_tokens"] for row in explain_modes(config)["modes"]} == {0}
    monkeypatch.setattr(TorchAttention, "capture_support", CaptureSupport.ALWAYS)
    document = explain_modes(config)
    small = {row["asked"]: row["full_mixed_max_tokens"] for row in document["modes"]}
    assert small == dict.fromkeys(MODES, 0) | {"full_and_piecewise": 128, "auto": 128}
    monkeypatch.setattr("ostinato.engine.execution.explain.explain_modes", lambda *_, **__: document)
    monkeypatch.setenv("COLUMNS", "200")
    assert ostinato_command("explain", "--model", model, "--load-format", "dummy", "--device", "cpu") == 0
    assert "PIECEWISE, FULL up to 128 tokens" in capsys.readouterr().out


def test_people_see_the_answer_and_a_table(ostinato_command: Command, capsys: Capture, model: str) -> None:
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--mode", "full"]
    assert ostinato_command(*args) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on cpu, attention torch (UNIFORM_BATCH)" in out
    assert "mode full is full_and_piecewise, partition breakable, compile none" in out
    assert "because attention supports UNIFORM_BATCH: mixed batches run piecewise" in out
    for mode in MODES:
        assert mode in out


@pytest.mark.parametrize("options", [[], ["--decode", "3"]])
def test_no_weights_are_needed(ostinato_command: Command, capsys: Capture, model: str, options: list[str]) -> None:
    assert [path.name for path in Path(model).iterdir()] == ["config.json"]
    assert ostinato_command("explain", "--model", model, "--device", "cpu", *options) == 0
    assert "partition breakable" in capsys.readouterr().out


def test_to_measure_weights_are_needed(ostinato_command: Command, capsys: Capture, model: str) -> None:
    assert ostinato_command("explain", "--model", model, "--device", "cpu", "--decode", "3", "--measure") == 2
    assert "use --load-format dummy for random weights" in capsys.readouterr().err


# --- one step ---------------------------------------------------------------------------------------


def test_sizes_are_explained(explained: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "sizes.json"
    path.write_text('{"decode_sizes": [3, 5], "token_sizes": [40]}')
    for options in (["--decode-sizes", "3,5", "--token-sizes", "40"], ["--config", str(path)]):
        found = [explained("--mixed", "2+9", *options), explained("--decode", "4", *options)]
        buckets = [document["step"]["decisions"][0]["bucket"] for document in found]
        assert buckets == [40, 5]


def test_costs_that_were_measured_with_sizes_of_an_option_hold_for_those_of_a_file(
    explained: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    costs, path = str(tmp_path / "costs.json"), tmp_path / "sizes.json"
    path.write_text('{"decode_sizes": [2], "token_sizes": [16]}')
    limits = ["--max-num-reqs", "2", "--max-model-len", "32", "--max-num-batched-tokens", "16", "--costs", costs]
    explained("--decode", "2", "--decode-sizes", "2", "--token-sizes", "16", "--measure", *limits)
    (decision,) = explained("--decode", "2", "--config", str(path), *limits)["step"]["decisions"]
    assert decision["cost_ms"] > 0 and decision["estimated"] == []


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({"costs": "c.json"}, [], "give --costs instead"),
        ({"decode_sizes": [3]}, ["--decode-sizes", "3"], "give --decode-sizes instead"),
        ({"decode_size": [3]}, [], "did you mean 'decode_sizes'"),
        ({}, ["--decode-sizes", "99"], "--decode-sizes must be <= --max-num-reqs (16), got 99"),
    ],
)
def test_settings_that_do_not_go(
    ostinato_command: Command,
    capsys: Capture,
    model: str,
    tmp_path: Path,
    settings: dict[str, Any],
    options: list[str],
    words: str,
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings))
    assert ostinato_command("explain", "--model", model, "--device", "cpu", "--config", str(path), *options) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "batch", "chosen"),
    [
        (["--decode", "3"], (3, 0, 3, 3), ("FULL", "PADDED", 4, 1)),
        (["--decode", "4"], (4, 0, 4, 4), ("FULL", "EXACT", 4, 0)),
        (["--prefill", "173"], (0, 173, 173, 1), ("PIECEWISE", "PADDED", 256, 83)),
        (["--mixed", "12+200"], (12, 200, 212, 13), ("PIECEWISE", "PADDED", 256, 44)),
        (["--decode", "3", "--mode", "none"], (3, 0, 3, 3), ("EAGER", "DISABLED", None, 0)),
        (["--prefill", "9", "--mode", "full_decode_only"], (0, 9, 9, 1), ("EAGER", "NOT_UNIFORM", None, 0)),
        (["--decode", "29", "--max-num-reqs", "32"], (29, 0, 29, 29), ("FULL", "PADDED", 32, 3)),
        (["--decode", "3", "--draft-length", "2"], (3, 0, 9, 3), ("FULL", "PADDED", 12, 3)),
    ],
)
def test_a_step_and_why_not_otherwise(
    explained: Callable[..., dict[str, Any]], options: list[str], batch: tuple[int, ...], chosen: tuple[Any, ...]
) -> None:
    step = explained(*options)["step"]
    assert tuple(step[name] for name in ("decodes", "prefill_tokens", "tokens", "requests")) == batch
    (decision,) = step["decisions"]
    assert decision["partition"] == "breakable"
    assert tuple(decision[name] for name in ("runtime_mode", "reason", "bucket", "padding")) == chosen
    first, *others = decision["candidates"]
    assert first["why"] == "chosen" and (first["bucket"], first["padding"]) == chosen[2:]
    assert all(row["why"] != "chosen" and row["cost_ms"] is None for row in others)
    if chosen[0] != "EAGER":
        assert others[-1]["candidate"] == "eager" and others[-1]["detail"] == "not measured"


def test_people_see_the_step_and_its_candidates(ostinato_command: Command, capsys: Capture, model: str) -> None:
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--mixed", "12+200"]
    assert ostinato_command(*args) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "A step of 12 decodes and 200 prompt tokens" in out
    assert "partition breakable: PIECEWISE because PADDED, bucket 256 (44 padded), cost not measured" in out
    assert "NOT_UNIFORM" in out and "LATER_IN_ORDER" in out


def test_a_short_model_needs_no_context_to_be_named(explained: Callable[..., dict[str, Any]]) -> None:
    found = explained("--decode", "2", "--max-model-len", "64")
    assert found["step"]["decisions"][0]["runtime_mode"] == "FULL"


LIMITS = ["--max-num-reqs", "2", "--max-num-batched-tokens", "32", "--max-model-len", "64"]


def test_costs_are_measured_kept_and_read(
    explained: Callable[..., dict[str, Any]], ostinato_command: Command, capsys: Capture, model: str, tmp_path: Path
) -> None:
    costs = str(tmp_path / "costs.json")
    found = explained("--prefill", "20", "--measure", "--partitions", "breakable,fx", "--costs", costs, *LIMITS)
    assert [one["partition"] for one in found["step"]["decisions"]] == ["breakable", "fx"]
    for decision in found["step"]["decisions"]:
        priced = [row["cost_ms"] for row in decision["candidates"] if row["cost_ms"] is not None]
        assert len(priced) >= 2 and priced[0] == decision["cost_ms"] <= 1.03 * min(priced) + 1e-4
    ways = {way for row in found["costs"] for way in row["costs"]}
    assert ways == {"eager", "full decode", "piecewise (breakable)", "piecewise (fx)"}
    for row in found["costs"]:
        assert row["costs"][row["best"]] == min(row["costs"].values())
    # Without weights, from the file: the same decision.
    again = explained("--prefill", "20", "--partition", "fx", "--costs", costs, *LIMITS)
    assert "costs" not in again
    assert again["step"]["decisions"] == [found["step"]["decisions"][1]]
    both = explained("--mixed", "1+7", "--partitions", "breakable,fx", "--costs", costs, *LIMITS)["step"]["decisions"]
    assert [one["partition"] for one in both] == ["breakable", "fx"] and all(one["cost_ms"] for one in both)
    auto = explained("--prefill", "20", "--partition", "auto", "--costs", costs, *LIMITS)
    assert auto["asked"]["partition"] == "auto" and auto["reasons"][0].startswith("partition auto is ")
    (decision,) = auto["step"]["decisions"]
    assert decision["partition"] == auto["resolved"]["partition"] in ("breakable", "fx")
    # For people.
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--measure", "--costs", costs]
    assert ostinato_command(*args, *LIMITS) == 0
    assert "Measured costs in ms" in capsys.readouterr().out


def test_costs_of_other_sizes_are_estimates_and_it_is_said(
    explained: Callable[..., dict[str, Any]], ostinato_command: Command, capsys: Capture, model: str, tmp_path: Path
) -> None:
    costs = ["--costs", str(tmp_path / "costs.json")]
    explained("--measure", *costs, *LIMITS)  # of 16 and 32 tokens
    (decision,) = explained("--prefill", "20", *costs, *LIMITS)["step"]["decisions"]
    assert decision["estimated"] == [] and decision["cost_ms"] is not None
    other = [*LIMITS[:2], "--max-num-batched-tokens", "24", *LIMITS[4:]]  # 16 and 24
    (decision,) = explained("--prefill", "20", *costs, *other)["step"]["decisions"]
    assert decision["estimated"] == ["PIECEWISE tokens=24"]
    (decision,) = explained("--prefill", "10", *costs, *other)["step"]["decisions"]
    assert "PIECEWISE tokens=16" not in decision["estimated"]
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--prefill", "20", *costs]
    for limits, is_told in ((LIMITS, False), (other, True)):
        assert ostinato_command(*args, *limits) == 0
        told = capsys.readouterr().out
        assert ("Measured with other sizes: no cost was measured of PIECEWISE tokens=24;" in told) is is_told


def test_costs_of_another_device(
    explained: Callable[..., dict[str, Any]], ostinato_command: Command, capsys: Capture, model: str, tmp_path: Path
) -> None:
    costs = tmp_path / "costs.json"
    explained("--measure", "--costs", str(costs), *LIMITS)
    document = json.loads(costs.read_text())
    document["origin"]["hardware"] = "NVIDIA H200"
    costs.write_text(json.dumps(document))
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--decode", "2", *LIMITS]
    for more in ([], ["--measure"]):
        assert ostinato_command(*args, "--costs", str(costs), *more) == 2
        out, err = capsys.readouterr()
        assert out == "" and "error OST104: " in err and "hardware NVIDIA H200, and here it is" in err
    assert json.loads(costs.read_text()) == document


def test_an_absent_device_is_told_in_options(
    ostinato_command: Command, capsys: Capture, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ostinato_command("explain", "--model", model, "--device", "cuda") == 2
    err = capsys.readouterr().err
    assert "error OST102: " in err and "use --device cpu (simulated graphs)" in err


def test_costs_that_are_not_there(ostinato_command: Command, capsys: Capture, model: str, tmp_path: Path) -> None:
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--decode", "2", *LIMITS]
    assert ostinato_command(*args, "--costs", str(tmp_path / "costs.json")) == 2
    assert "is not there to tell costs of partition breakable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--mode", "piecewize"], "OST101", "unknown mode 'piecewize'"),
        (["--partition", "fxx"], "OST101", "unknown partition 'fxx'"),
        (["--partition", "auto", "--measure"], "OST100", "goes by what was measured before"),
        (("--partitions", "fx,breakable"), "OST100", "add --measure"),
        (("--context", "64"), "OST100", "belongs to a step"),
        (["--costs", "costs.json"], "OST100", "--costs tells of a step"),
        (["--costs", "costs.json", "--partitions", "fx,breakable"], "OST100", "--costs tells of a step"),
        (["--compile", "gcc"], "OST101", "unknown compile 'gcc'"),
        (["--attention", "flash"], "OST101", "unknown attention 'flash'"),
        (["--draft-length", "-1"], "OST100", "--draft-length is -1"),
        (["--draft-length", "512"], "OST100", "--draft-length of 512 is above --max-num-batched-tokens 512"),
        (["--active-loras", "-2"], "OST100", "--active-loras is -2"),
        (["--measure", "--active-loras", "1"], "OST100", "adapters cannot be measured"),
        (["--model", "/no/such/folder"], "OST401", "/no/such/folder"),
        (["--decode", "0"], "OST100", "--decode is 0"),
        (["--prefill", "-3"], "OST100", "--prefill is -3"),
        (["--decode", "17"], "OST100", "17 requests is above --max-num-reqs 16"),
        (["--prefill", "513"], "OST100", "513 tokens is above --max-num-batched-tokens 512"),
        (["--mixed", "16+200"], "OST100", "17 requests is above --max-num-reqs 16"),
        (["--decode", "2", "--context", "9999"], "OST100", "9999 tokens of context is above --max-model-len"),
        (["--decode", "2", "--context", "0"], "OST100", "--context is 0"),
        (["--mixed", "abc"], "OST100", "--mixed is 'abc'"),
        (["--mixed", "12+"], "OST100", "--mixed is '12+'"),
        (["--mixed", "0+5"], "OST100", "--mixed is '0+5'"),
        (["--mixed", "12+200+1"], "OST100", "--mixed is '12+200+1'"),
        (["--decode", "2", "--prefill", "3"], "OST100", "--decode and --prefill are two steps"),
        (["--measure", "--draft-length", "2"], "OST100", "drafts cannot be measured"),
        (["--partitions", "breakable,fxx"], "OST101", "unknown partition 'fxx'"),
        (["--decode", "2", "--costs", "/no/such/folder/costs.json"], "OST100", "/no/such/folder"),
    ],
)
def test_bad_input(
    ostinato_command: Command, capsys: Capture, model: str, options: list[str], code: str, words: str
) -> None:
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", *options]
    assert ostinato_command(*args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error {code}: " in err
    assert words in err
    assert "Traceback" not in err
    assert ostinato_command(*args, "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


@pytest.mark.parametrize("options", [["--draft-length", "many"], ["--decode", "many"], ["--no-such-option"], ["stray"]])
def test_bad_usage(ostinato_command: Command, capsys: Capture, options: list[str]) -> None:
    assert ostinato_command("explain", *options) == 2
    assert "Traceback" not in capsys.readouterr().err
