"""`ostinato explain`: the modes table for a model's folder, its JSON, and bad input. No weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.testing.tiny_models import write_tiny_model

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]
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
    assert list(document) == ["model", "family", "device", "attention", "asked", "resolved", "reasons", "modes"]
    assert (document["model"], document["family"], document["device"]) == (model, "qwen3", "cpu")
    assert document["attention"] == {"name": "torch", "support": "UNIFORM_BATCH"}
    assert document["asked"] == {"mode": "auto", "partition": "breakable", "compile": "none"}
    assert document["resolved"] == {"mode": "full_and_piecewise", "partition": "breakable", "compile": "none"}
    assert document["reasons"] == ["attention supports UNIFORM_BATCH"]
    assert [row["asked"] for row in document["modes"]] == MODES
    for row in document["modes"]:
        assert list(row) == ["asked", "mode", "partition", "compile", "reasons", "decode", "mixed"]
        assert bool(row["reasons"]) == (row["asked"] != row["mode"])


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
    monkeypatch.setattr(TorchAttention, "capture_support", CaptureSupport.UNIFORM_SINGLE_TOKEN_DECODE)
    assert explained()["resolved"]["mode"] == "full_and_piecewise"
    document = explained("--draft-length", "3")
    assert document["resolved"]["mode"] == "piecewise"
    assert "decode brings 4 tokens a request" in document["reasons"][0]


def test_people_see_the_answer_and_a_table(ostinato_command: Command, capsys: Capture, model: str) -> None:
    args = ["explain", "--model", model, "--load-format", "dummy", "--device", "cpu", "--mode", "full"]
    assert ostinato_command(*args) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on cpu, attention torch (UNIFORM_BATCH)" in out
    assert "mode full is full_and_piecewise, partition breakable, compile none" in out
    assert "because attention supports UNIFORM_BATCH: mixed batches run piecewise" in out
    for mode in MODES:
        assert mode in out


def test_no_weights_are_needed(explained: Callable[..., dict[str, Any]], model: str) -> None:
    assert not list(Path(model).glob("*.safetensors"))
    assert explained()["resolved"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--mode", "piecewize"], "OST101", "unknown mode 'piecewize'"),
        (["--partition", "fxx"], "OST101", "unknown partition 'fxx'"),
        (["--compile", "gcc"], "OST101", "unknown compile 'gcc'"),
        (["--attention", "flash"], "OST101", "unknown attention 'flash'"),
        (["--draft-length", "-1"], "OST100", "draft_length is -1"),
        (["--model", "/no/such/folder"], "OST401", "/no/such/folder"),
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


@pytest.mark.parametrize("options", [["--draft-length", "many"], ["--no-such-option"], ["stray"]])
def test_bad_usage(ostinato_command: Command, capsys: Capture, options: list[str]) -> None:
    assert ostinato_command("explain", *options) == 2
    assert "Traceback" not in capsys.readouterr().err
