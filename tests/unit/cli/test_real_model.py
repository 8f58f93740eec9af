"""`ostinato generate`, `ostinato demo` and `ostinato qualify` with the default model, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MAIN = "from ostinato.cli.app import main; main()"
SMALL = ["--device", "cpu", "--max-num-reqs", "2", "--max-model-len", "64"]


def run(*args: str, code: int = 0, stdin: str = "") -> tuple[str, str]:
    command = [sys.executable, "-c", MAIN, *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def run_json(*args: str, code: int = 0) -> Any:
    return json.loads(run(*args, "--json", code=code)[0])


MODES = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "auto")


def answer(mode: str) -> Any:
    """What `ostinato generate` says of the capital of France in ``mode``, in float32."""
    options = ["--max-tokens", "12", "--dtype", "float32", "--mode", mode, *SMALL]
    return run_json("generate", "--prompt", "What is the capital of France?", *options)


@pytest.fixture(scope="module")
def eager_answer() -> Any:
    return answer("none")


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_knows_the_capital_of_france_in_the_same_tokens(eager_answer: Any, mode: str) -> None:
    document = eager_answer if mode == "none" else answer(mode)
    (output,) = document["outputs"]
    assert "Paris" in output["text"]
    assert len(output["token_ids"]) > 1
    assert output["token_ids"] == eager_answer["outputs"][0]["token_ids"]
    taken = {"none": {"EAGER"}, "piecewise": {"PIECEWISE"}, "full_decode_only": {"EAGER", "FULL"}}
    assert set(document["dispatch"]["by_runtime_mode"]) == taken.get(mode, {"FULL", "PIECEWISE"})


def test_it_knows_the_capital_of_france() -> None:
    out, err = run("generate", "--prompt", "What is the capital of France?", "--max-tokens", "8", *SMALL)
    assert out.startswith("> What is the capital of France?\n")
    assert "Paris" in out
    assert " FULL" in out.splitlines()[-1]
    assert "loading weights: " in err


def test_graphs_and_eager_agree_and_a_bad_prompt_harms_nobody() -> None:
    prompts = ["--prompt", "Say hello.", "--prompt", "too long " * 100, "--prompt", "Count to five."]
    outputs = {}
    for mode in ("none", "full_and_piecewise"):
        options = ["--dtype", "float32", "--max-tokens", "12", "--mode", mode, *SMALL]
        document = run_json("generate", *prompts, *options, code=2)
        first, second, third = outputs[mode] = document["outputs"]
        assert second["error"]["code"] == "OST500"
        assert len(first["token_ids"]) > 1
        assert len(third["token_ids"]) > 1
        assert (document["graphs"]["count"] == 0) == (mode == "none")
        modes = set(document["dispatch"]["by_runtime_mode"])
        assert modes == ({"EAGER"} if mode == "none" else {"FULL", "PIECEWISE"})
        assert document["config"]["reasons"]
    assert outputs["none"] == outputs["full_and_piecewise"]


def test_plain_text_is_continued_without_a_chat_template() -> None:
    plain = ["generate", "--prompt", "1, 2, 3, 4,", "--no-chat", "--max-tokens", "4", "--mode", "none", *SMALL]
    assert run_json(*plain)["outputs"][0]["text"].strip().startswith("5")


def test_stop_strings_and_seeds() -> None:
    base = ["generate", "--prompt", "Count from one to ten.", "--mode", "none", *SMALL]
    (stopped,) = run_json(*base, "--stop", "3")["outputs"]
    assert "3" not in stopped["text"]
    assert stopped["finish_reason"] == "stop"
    sampled = [run_json(*base, "--temperature", "1.5", "--seed", "11")["outputs"] for _ in range(2)]
    assert sampled[0] == sampled[1]


def test_the_demo_shows_every_runtime_mode_and_equals_eager() -> None:
    document = run_json("demo", "--device", "cpu", "--max-tokens", "16")
    assert document["equals_eager"] is True
    assert set(document["dispatch"]["by_runtime_mode"]) == {"FULL", "PIECEWISE", "EAGER"}
    assert document["dispatch"]["by_reason"].keys() >= {"EXACT", "PADDED", "OVER_LARGEST"}
    assert all(output["text"] for output in document["outputs"])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--model", "/nonexistent"], "OST401"),
        (["--device", "cuda:99"], "OST102"),
        (["--max-model-len", "1000000"], "OST100"),
        (["--kv-tokens", "1000000000000"], "OST404"),
    ],
)
def test_what_only_the_machine_or_the_model_can_refuse(options: list[str], code: str) -> None:
    assert run_json("generate", "--prompt", "hi", *options, code=2)["error"]["code"] == code


def test_every_graph_does_what_eager_does() -> None:
    report = run_json("qualify", "--device", "cpu", "--max-num-reqs", "2", "--max-num-batched-tokens", "16")
    assert report["passed"] and report["bitwise"]
    assert len(report["keys"]) == 5
    assert all(key["max_gap"] == 0.0 and key["max_gap_unpadded"] < 1e-3 for key in report["keys"])
