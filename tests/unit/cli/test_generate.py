"""`ostinato generate` with a stand-in engine: formats, exit codes, errors, and what reaches the engine."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.engine.config import DEFAULT_MODEL
from ostinato.errors import ModelNotFoundError

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]


def user(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def test_json_is_the_documented_object(fake_llm: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("generate", "--prompt", "one two", "--prompt", "three", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["outputs", "dispatch", "graphs", "config"]
    assert document["outputs"] == [
        {"prompt": "one two", "text": "two one", "token_ids": [3, 3], "finish_reason": "length"},
        {"prompt": "three", "text": "three", "token_ids": [5], "finish_reason": "length"},
    ]
    assert document["dispatch"]["by_runtime_mode"] == {"FULL": 3, "EAGER": 1}
    assert document["graphs"]["count"] == 2
    assert document["config"]["model"] == DEFAULT_MODEL
    assert document["config"]["reasons"] == {"device": "cpu: found"}


def test_progress_goes_to_standard_error(fake_llm: Any, ostinato_command: Command, capsys: Capture) -> None:
    ostinato_command("generate", "--prompt", "one", "--json")
    out, err = capsys.readouterr()
    assert "load weights: 3 tensors in" in err
    assert "load weights" not in out


def test_people_see_prompt_text_and_one_line_of_dispatch(
    fake_llm: Any, ostinato_command: Command, capsys: Capture
) -> None:
    assert ostinato_command("generate", "--prompt", "one two", "--prompt", "three four") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == ["> one two", "two one", "", "> three four", "four three", ""]
    (summary,) = lines[6:]
    assert summary.startswith("4 steps: 3 FULL, 1 EAGER; why: 3 PADDED, 1 OVER_LARGEST; padding: 3 % of rows; 2 graphs")


def test_the_engine_is_closed(fake_llm: Any, ostinato_command: Command) -> None:
    ostinato_command("generate", "--prompt", "one")
    (llm,) = fake_llm.opened
    assert llm.is_closed


def test_every_option_reaches_the_engine(fake_llm: Any, ostinato_command: Command) -> None:
    sampling = "--max-tokens 5 --temperature 0.5 --seed 7 --top-k 3 --top-p 0.9 --min-p 0.1 --stop END --stop ."
    engine = "--model m --mode piecewise --device cpu --dtype bfloat16 --load-format dummy --attention torch"
    graphs = "--partition fx --compile inductor --on-moved recapture"
    limits = "--max-model-len 128 --max-num-reqs 2 --kv-tokens 256"
    assert ostinato_command("generate", "--prompt", "p", *f"{sampling} {engine} {graphs} {limits}".split()) == 0
    (llm,) = fake_llm.opened
    ((_, _, params),) = llm.calls
    assert (params.max_tokens, params.temperature, params.seed) == (5, 0.5, 7)
    assert (params.top_k, params.top_p, params.min_p, params.stop) == (3, 0.9, 0.1, ("END", "."))
    config = llm.config
    assert (config.model, config.mode, config.device, config.dtype) == ("m", "piecewise", "cpu", "bfloat16")
    assert (config.load_format, config.attention) == ("dummy", "torch")
    assert (config.partition, config.compile, config.on_moved) == ("fx", "inductor", "recapture")
    assert (config.max_model_len, config.max_num_reqs, config.kv_tokens) == (128, 2, 256)


def test_graphs_are_made_for_the_prompts_that_there_are(fake_llm: Any, ostinato_command: Command) -> None:
    assert ostinato_command("generate", "--prompt", "p", "--prompt", "q") == 0
    assert ostinato_command("generate", *(["--prompt", "p"] * 17)) == 0
    few, many = fake_llm.opened
    assert (few.config.max_num_reqs, many.config.max_num_reqs) == (2, None)


@pytest.mark.parametrize(
    ("has_template", "options", "called"),
    [
        (True, [], "chat"),
        (False, [], "generate"),
        (True, ["--no-chat"], "generate"),
        (False, ["--chat"], "chat"),
    ],
)
def test_chat_is_the_default_of_a_model_with_a_template(
    fake_llm: Any,
    ostinato_command: Command,
    monkeypatch: pytest.MonkeyPatch,
    has_template: bool,
    options: list[str],
    called: str,
) -> None:
    monkeypatch.setattr(fake_llm, "has_chat_template", has_template)
    ostinato_command("generate", "--prompt", "one", *options)
    ((method, sent, _),) = fake_llm.opened[0].calls
    assert method == called
    assert sent == ([user("one")] if called == "chat" else ["one"])


def test_made_up_weights_without_a_tokenizer_are_fed_bytes(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_llm, "has_tokenizer", False)
    assert ostinato_command("generate", "--prompt", "hé", "--load-format", "dummy") == 0
    out, err = capsys.readouterr()
    assert "> hé\n(no text; token ids [104, 195, 169])\n" in out
    assert "no tokenizer" in err


def test_read_weights_without_a_tokenizer_are_fed_the_text(
    fake_llm: Any, ostinato_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_llm, "has_tokenizer", False)
    ostinato_command("generate", "--prompt", "one")
    assert fake_llm.opened[0].calls[0][:2] == ("generate", ["one"])  # the engine refuses it and says why


# --- one bad prompt among others --------------------------------------------------------------


@pytest.mark.parametrize("bad", ["too long", "", "  ", "caf\udce9"])
@pytest.mark.parametrize("option", ["--chat", "--no-chat"])
def test_a_bad_prompt_leaves_the_others_unharmed(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, bad: str, option: str
) -> None:
    prompts = ["--prompt", "one two", "--prompt", bad, "--prompt", "three"]
    assert ostinato_command("generate", *prompts, option, "--json") == 2
    first, second, third = json.loads(capsys.readouterr().out)["outputs"]
    assert (first["text"], third["text"]) == ("two one", "three")
    assert second["prompt"] == bad
    assert (second["text"], second["token_ids"], second["finish_reason"]) == ("", [], "error")
    assert second["error"]["code"] == "OST500"
    assert "error" not in first
    assert "error" not in third


def test_people_are_told_which_prompt_was_bad(fake_llm: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("generate", "--prompt", "one", "--prompt", "too long", "--prompt", "") == 2
    out, err = capsys.readouterr()
    assert "> one\none\n" in out
    assert "> too long\n(no answer)" in out
    assert "prompt 2: [OST500] the prompt is too long" in err
    assert "prompt 3: [OST500] the prompt is empty" in err


def test_no_model_is_loaded_when_every_prompt_is_bad(fake_llm: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("generate", "--prompt", "", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "OST500"
    assert not fake_llm.opened


# --- what fails the command --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--mode", "piecewize"], "OST101", "did you mean 'piecewise'"),
        (["--device", "tpu"], "OST101", "unknown device 'tpu'"),
        (["--dtype", "int8"], "OST101", "unknown dtype 'int8'"),
        (["--attention", "flash"], "OST101", "unknown attention 'flash'"),
        (["--load-format", "x"], "OST101", "unknown --load-format 'x'"),
        (["--partition", "breakble"], "OST101", "did you mean 'breakable'"),
        (["--compile", "tvm"], "OST101", "unknown compile 'tvm'"),
        (["--model", ""], "OST100", "--model must be"),
        (["--max-num-reqs", "0"], "OST100", "--max-num-reqs must be"),
        (["--kv-tokens", "1"], "OST100", "--kv-tokens must be"),
        (["--max-tokens", "0"], "OST500", "--max-tokens must be"),
        (["--temperature", "-1"], "OST500", "--temperature must be"),
        (["--temperature", "nan"], "OST500", "--temperature must be"),
        (["--top-p", "0"], "OST500", "--top-p must be"),
        (["--min-p", "2"], "OST500", "--min-p must be"),
        (["--top-k", "-1"], "OST500", "--top-k must be"),
        (["--seed", str(2**63)], "OST500", "--seed must be"),
        (["--stop", ""], "OST500", "--stop must be"),
        (["--prompt-file", "missing.txt"], "OST100", "cannot read the prompts from missing.txt"),
    ],
)
def test_a_bad_setting_is_a_typed_error_before_anything_is_loaded(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, options: list[str], code: str, words: str
) -> None:
    assert ostinato_command("generate", "--prompt", "one", *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error {code}: ")
    assert words in err
    assert "Traceback" not in err
    assert not fake_llm.opened


@pytest.mark.parametrize("options", [["--max-tokens", "many"], ["--no-such-option"], ["stray"]])
def test_bad_usage_is_two(fake_llm: Any, ostinato_command: Command, capsys: Capture, options: list[str]) -> None:
    assert ostinato_command("generate", "--prompt", "one", *options) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_prompt(fake_llm: Any, ostinato_command: Command, capsys: Capture) -> None:
    assert ostinato_command("generate", "--json") == 2
    assert "there is no prompt" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_an_engine_that_does_not_start(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_llm, "start_error", ModelNotFoundError("no source has it", fix="check the spelling"))
    assert ostinato_command("generate", "--prompt", "one") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-2:] == ["error OST401: no source has it", "  fix: check the spelling"]


# --- partitions, with an engine -----------------------------------------------------------------


@pytest.mark.parametrize("partition", ["breakable", "fx", "inductor"])
def test_partitions_answer_alike(ostinato_command: Command, capsys: Capture, tmp_path: Path, partition: str) -> None:
    from ostinato.testing.tiny_models import write_tiny_model

    model = write_tiny_model(tmp_path, has_weights=False, has_tokenizer=False)
    small = ["--device", "cpu", "--max-model-len", "32", "--max-num-reqs", "1", "--max-tokens", "3", "--json"]
    shared = ["generate", "--model", str(model), "--load-format", "dummy", "--prompt", "hello", *small]
    found = {}
    for options in (["--mode", "none"], ["--mode", "piecewise", "--partition", partition, "--compile", "none"]):
        assert ostinato_command(*shared, *options) == 0
        found[options[1]] = json.loads(capsys.readouterr().out)
    assert found["piecewise"]["outputs"] == found["none"]["outputs"]
    assert set(found["piecewise"]["dispatch"]["by_runtime_mode"]) == {"PIECEWISE"}
    resolved = {"inductor": "fx"}.get(partition, partition)  # on a CPU
    assert found["piecewise"]["config"]["partition"] == resolved


@pytest.mark.parametrize(
    ("options", "resolved", "why"),
    [
        (["--compile", "inductor"], {"compile": "none"}, "simulated graphs cannot record Inductor's CPU kernels"),
        (["--partition", "inductor"], {"partition": "fx"}, "on a CPU every Inductor kernel would be a break"),
        (["--mode", "full"], {"mode": "full"}, "attention supports UNIFORM_BATCH: mixed batches run piecewise"),
    ],
)
def test_what_a_setting_becomes_is_told(
    ostinato_command: Command,
    capsys: Capture,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    options: list[str],
    resolved: dict[str, str],
    why: str,
) -> None:
    from ostinato.testing.tiny_models import write_tiny_model

    model = write_tiny_model(tmp_path, has_weights=False, has_tokenizer=False)
    shared = ["generate", "--model", str(model), "--load-format", "dummy", "--device", "cpu", "--prompt", "hi"]
    small = ["--max-tokens", "2", "--max-model-len", "64", "--max-num-reqs", "2", "--token-sizes", "64", "--json"]
    assert ostinato_command(*shared, *small, "--decode-sizes", "1", *options) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    setting, asked = options[0].removeprefix("--"), options[1]
    becomes = config["resolved_mode"] if setting == "mode" else resolved[setting]
    told = [record.getMessage() for record in caplog.records if record.name == "ostinato"]
    assert [text for text in told if "became" in text] == [f"{setting} {asked} became {becomes}: {why}"]
    assert {setting: config[setting]} == resolved
    assert config["reasons"][setting] == (why if setting == "mode" else f"{becomes}: {why}")
    assert why not in config["reasons"]["mode"] or setting == "mode", "each under its own name"


# --- prompts and encodings ---------------------------------------------------------------------


def test_prompts_of_a_file(fake_llm: Any, ostinato_command: Command, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one two\n\nthree\n", encoding="utf-8")
    assert ostinato_command("generate", "--prompt-file", str(file), "--json") == 0
    assert [output["prompt"] for output in json.loads(capsys.readouterr().out)["outputs"]] == ["one two", "three"]


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_bad_line_of_a_file_is_as_a_bad_option(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, tmp_path: Path, as_json: list[str]
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"one two\nbad \xff\nthree\n")
    assert ostinato_command("generate", "--prompt-file", str(file), *as_json) == 2
    of_file = capsys.readouterr()
    options = [word for prompt in ("one two", "bad \udcff", "three") for word in ("--prompt", prompt)]
    assert ostinato_command("generate", *options, *as_json) == 2
    of_options = capsys.readouterr()
    assert of_options.out == of_file.out and "two one" in of_file.out and "three" in of_file.out
    if as_json:
        assert json.loads(of_file.out)["outputs"][1]["error"]["code"] == "OST500"
    else:
        assert "prompt 2: [OST500] the prompt is not UTF-8" in of_file.err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_output_encoding_that_lacks_the_text(
    fake_llm: Any, ostinato_command: Command, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert ostinato_command("generate", "--prompt", "你好 caf\u00e9", *options) == 0
    sys.stdout.flush()
    assert b"\\u4f60\\u597d" in raw.getvalue()


def test_sizes_and_whose_ladder(fake_llm: Any, ostinato_command: Command, capsys: Any, tmp_path: Path) -> None:
    arguments = ("generate", "--prompt", "a b")
    assert ostinato_command(*arguments, "--decode-sizes", "vllm", "--token-sizes", "64, 16") == 0
    config = fake_llm.opened[0].config
    assert (config.decode_sizes, config.token_sizes) == ("vllm", (16, 64))
    assert ostinato_command(*arguments, "--token-sizes", "tensorrt-llm") == 2
    err = capsys.readouterr().err
    assert "unknown --token-sizes 'tensorrt-llm'" in err and "valid: sglang, vllm" in err
    file = tmp_path / "sizes.json"
    file.write_text('{"decode_sizes": "sglang"}')
    assert ostinato_command(*arguments, "--config", str(file)) == 0
    assert fake_llm.opened[-1].config.decode_sizes == "sglang"
    assert ostinato_command(*arguments, "--decode-sizes", "1,x") == 2
    err = capsys.readouterr().err
    assert "'1,x' are no sizes" in err and "or the name of one ladder" in err
    for text in ("-1", "", "1.5", "1e3"):
        assert ostinato_command(*arguments, f"--decode-sizes={text}") == 2
        err = " ".join(capsys.readouterr().err.split())
        assert f"unknown --decode-sizes '{text}'" in err
        assert "valid: sglang, tensorrt-llm, vllm, or whole numbers from 1 on, such as 1,8,64" in err
    assert ostinato_command(*arguments, "--config", str(file), "--decode-sizes", "1,2") == 2
    assert "give --decode-sizes instead" in capsys.readouterr().err
