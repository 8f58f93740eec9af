"""`ostinato inspect`: plans as text, JSON and DOT, what reaches the engine, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.testing.tiny_models import tiny_config, write_tiny_model

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]
NUM_LAYERS = tiny_config()["num_hidden_layers"]


class FakePlan:
    def to_dict(self) -> dict[str, Any]:
        return {"key": "FULL tokens=8"}

    def to_text(self) -> str:
        return "FULL tokens=8\n    0 segment"

    def to_dot(self) -> str:
        return "digraph plan {}"


@pytest.fixture
def fake_plans(fake_llm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in engine, with two plans to show; `FakeLLM.opened` lists the engines that were made."""
    monkeypatch.setattr(fake_llm, "inspect", lambda self: [FakePlan(), FakePlan()], raising=False)
    return fake_llm


def test_text(fake_plans: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("inspect") == 0
    assert capsys.readouterr().out == "FULL tokens=8\n    0 segment\n\n" * 2
    (llm,) = fake_plans.opened
    assert llm.is_closed


def test_json_is_one_object(fake_plans: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("inspect", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"plans": [{"key": "FULL tokens=8"}] * 2}


def test_dot(fake_plans: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("inspect", "--dot") == 0
    out, err = capsys.readouterr()
    assert out == "digraph plan {}\n" * 2
    assert "load weights" in err, "progress goes to standard error"


def test_every_option_reaches_the_engine(fake_plans: Any, ostinato_command: Command) -> None:
    options = "--model m --tokens 24 --mode piecewise --partition fx --compile inductor --device cpu --dtype float32"
    assert ostinato_command("inspect", *options.split(), "--attention", "torch", "--load-format", "dummy") == 0
    (config,) = [llm.config for llm in fake_plans.opened]
    assert (config.model, config.mode, config.partition, config.compile) == ("m", "piecewise", "fx", "inductor")
    assert (config.device, config.dtype, config.attention, config.load_format) == ("cpu", "float32", "torch", "dummy")
    assert (config.decode_sizes, config.token_sizes) == ((24,), (24,)), "one bucket of each kind"
    assert (config.max_num_reqs, config.max_num_batched_tokens) == (24, 24)


def test_a_large_bucket_asks_for_no_more_requests_than_an_engine_has(
    fake_plans: Any, ostinato_command: Command
) -> None:
    for tokens in ("256", "257", "8192"):
        assert ostinato_command("inspect", "--tokens", tokens) == 0
    configs = [llm.config for llm in fake_plans.opened]
    assert [(config.max_num_reqs, config.decode_sizes) for config in configs] == [(256, (256,))] * 3
    assert [(config.max_num_batched_tokens, config.token_sizes) for config in configs] == [
        (256, (256,)), (257, (257,)), (8192, (8192,)),
    ]  # fmt: skip


def test_no_graphs_to_show(
    fake_plans: Any, ostinato_command: Command, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_plans, "inspect", lambda self: [])
    assert ostinato_command("inspect", "--mode", "none") == 0
    assert "mode none has no graphs here: see `ostinato explain`" in capsys.readouterr().out
    assert ostinato_command("inspect", "--mode", "none", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"plans": []}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--dot", "--json"], "OST100", "--dot and --json exclude each other"),
        (["--tokens", "0"], "OST100", "--tokens is 0\n  fix: use 1 to 8192"),
        (["--tokens", "8193"], "OST100", "--tokens is 8193\n  fix: use 1 to 8192"),
        (["--tokens", "100000"], "OST100", "--tokens is 100000"),
        (["--mode", "piecewize"], "OST101", "did you mean 'piecewise'"),
        (["--partition", "fxx"], "OST101", "unknown partition 'fxx'"),
        (["--compile", "gcc"], "OST101", "unknown compile 'gcc'"),
        (["--dtype", "int8"], "OST101", "unknown dtype 'int8'"),
    ],
)
def test_bad_input(
    fake_plans: Any, ostinato_command: Command, capsys: Capture, options: list[str], code: str, words: str
) -> None:
    assert ostinato_command("inspect", *options) == 2
    out, err = capsys.readouterr()
    assert f"error {code}: " in err if "--json" not in options else json.loads(out)["error"]["code"] == code
    assert words in out + err
    assert not fake_plans.opened, "nothing is loaded"


@pytest.mark.parametrize("options", [["--tokens", "many"], ["--no-such-option"], ["stray"]])
def test_bad_usage(fake_plans: Any, ostinato_command: Command, capsys: Capture, options: list[str]) -> None:
    assert ostinato_command("inspect", *options) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not fake_plans.opened


# --- a real model -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), has_weights=False, has_tokenizer=False)


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_the_plans_of_a_model(ostinato_command: Command, capsys: Capture, model: Path, partition: str) -> None:
    args = ["inspect", "--model", str(model), "--load-format", "dummy", "--device", "cpu", "--tokens", "4"]
    assert ostinato_command(*args, "--partition", partition, "--json") == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    # Contexts of up to 256 tokens have decode graphs of their own.
    assert {plan["key"].split()[0] for plan in plans} == {"FULL", "PIECEWISE"}
    for plan in plans:
        assert list(plan) == [
            "key", "segments", "breaks", "nodes", "bridge_bytes", "break_argument_bytes", "entries",
        ]  # fmt: skip
        is_piecewise = plan["key"].startswith("PIECEWISE")
        assert plan["breaks"] == (NUM_LAYERS if is_piecewise else 0)
        assert plan["segments"] == plan["breaks"] + 1
        assert len(plan["entries"]) == plan["segments"] + plan["breaks"]
        assert plan["nodes"] == sum(len(e["nodes"]) for e in plan["entries"] if e["kind"] == "segment")
        assert plan["nodes"] > 0
        for entry in plan["entries"]:
            if entry["kind"] == "break":
                assert entry["name"] == "paged_attention"
                assert entry["argument_bytes"]["segment"] == entry["argument_bytes"]["owned"] > 0, "q, k, v and out"
                assert "unified.py:" in entry["source"]
