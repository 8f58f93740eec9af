"""``ostinato doctor`` on planted files: exit codes, JSON, table, and a typed error for every bad target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = """\
import torch
linear = torch.nn.Linear(8, 8)

def read(h):
    print("the callable prints")
    return h * (h.sum().item() > -1e9)

def blocked_model(x):
    return linear(read(linear(x)))

def blocked():
    return blocked_model, (torch.randn(4, 8),)

def fine():
    return linear, (torch.randn(4, 8),), {}

def conditional():
    return (lambda x: x + torch.rand(8)), (torch.randn(4, 8),)

def raises():
    raise ValueError("no weights")

def fails_by_itself():
    return linear, (torch.randn(4, 5),)

def no_tuple():
    return linear

def no_args():
    return linear, torch.randn(4, 8)

not_a_function = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model_under_test.py"
    path.write_text(SOURCE)
    return path


def test_blockers_give_exit_code_1_and_json(
    file: Path, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", f"{file}:blocked", "--json") == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)  # one object and nothing else: what the callable prints goes elsewhere
    assert "the callable prints" in captured.err
    assert document["verdict"] == "unfriendly"
    assert {(op["op"], op["reason"], op["line"]) for op in document["blockers"]} == {("Tensor.item", "host sync", 6)}
    assert document["suggested_breaks"] == [{"function": "read", "file": str(file), "line": 4}]
    assert set(document["modes"]) == {"full", "piecewise", "breakable"}
    assert not document["modes"]["full"]["works"]
    assert document["modes"]["breakable"]["works"] and document["modes"]["breakable"]["segments"] == 2


def test_the_report_for_people_names_line_function_and_modes(
    file: Path,
    ostinato_command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("COLUMNS", "160")
    assert ostinato_command("doctor", f"{file.name}:blocked") == 1
    out = capsys.readouterr().out
    for part in ("Tensor.item", "host sync", "read  (", "model_under_test.py:6", "fails: HostSyncError", "2 segments"):
        assert part in out


@pytest.mark.parametrize(("factory", "verdict"), [("fine", "friendly"), ("conditional", "conditional")])
def test_no_blockers_give_exit_code_0(
    factory: str, verdict: str, file: Path, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", f"{file}:{factory}", "--json", "--device", "cpu") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == verdict and document["blockers"] == [] and document["suggested_breaks"] == []


def test_all_lists_friendly_ops_too(
    file: Path, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", f"{file}:fine") == 0
    assert "aten::addmm" not in capsys.readouterr().out
    assert ostinato_command("doctor", f"{file}:fine", "--all") == 0
    assert "aten::addmm" in capsys.readouterr().out


def test_a_module_name_works_from_the_working_directory(
    file: Path, ostinato_command: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert ostinato_command("doctor", "model_under_test:fine", "--json") == 0


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("{file}:raises", "no weights"),
        ("{file}:fails_by_itself", "by itself"),
        ("{file}:no_tuple", "something else than a call"),
        ("{file}:no_args", "something else than a call"),
        ("{file}:missing", "no function 'missing'"),
        ("{file}:not_a_function", "no function 'not_a_function'"),
        ("{file}:", "names no factory"),
        ("{file}", "names no factory"),
        ("absent.py:make", "no file absent.py"),
        ("absent_package.module:make", "cannot be imported"),
    ],
)
def test_a_bad_target_is_a_typed_error(
    target: str, says: str, file: Path, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", target.format(file=file), "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "OST103" and error["fix"]
    assert says in error["message"]


def test_a_file_that_cannot_be_imported_says_why(
    file: Path, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("import a_package_that_is_not_there\n")
    assert ostinato_command("doctor", f"{file}:make") == 2
    assert "a_package_that_is_not_there" in capsys.readouterr().err


def test_a_near_name_is_suggested(
    file: Path, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", f"{file}:blockd", "--json") == 2
    assert "'blocked'" in json.loads(capsys.readouterr().out)["error"]["fix"]


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        ((), ["full", "piecewise", "breakable"]),
        (("--mode", "auto"), ["full", "piecewise", "breakable"]),
        (("--mode", "full"), ["full"]),
        (("--mode", "full_decode_only"), ["full"]),
        (("--mode", "piecewise"), ["piecewise", "breakable"]),
        (("--partition", "breakable"), ["full", "breakable"]),
        (("--mode", "piecewise", "--partition", "breakable"), ["breakable"]),
    ],
)
def test_mode_and_partition_say_what_is_tried(
    options: tuple[str, ...],
    tried: list[str],
    file: Path,
    ostinato_command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ostinato_command("doctor", f"{file}:fine", "--json", *options) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["modes"]) == tried and document["notes"] == []


def test_what_a_cpu_cannot_do_is_noted(
    file: Path, model: str, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--partition", "inductor", "--compile", "inductor", "--device", "cpu", "--json")
    for target in (f"{file}:fine", model):
        assert ostinato_command("doctor", target, *options) == 0
        document = json.loads(capsys.readouterr().out)
        first, second = (note for note in document["notes"] if "inductor" in note)
        assert first.startswith("partition inductor is fx") and second.startswith("compile inductor is none")
        assert document["modes"]["piecewise"]["works"]


@pytest.mark.parametrize("target", ["a model", "a factory"])
def test_without_graphs_there_is_nothing_to_examine(
    target: str, file: Path, model: str, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", {"a model": model, "a factory": f"{file}:fine"}[target], "--mode", "none") == 2
    assert "error OST100: mode none makes no graphs" in capsys.readouterr().err


def test_a_partition_by_measured_costs_cannot_be_examined(
    file: Path, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", f"{file}:fine", "--partition", "auto") == 2
    assert "error OST100: partition auto goes by measured costs" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path: Path) -> str:
    from ostinato.testing.tiny_models import write_tiny_model

    return str(write_tiny_model(tmp_path / "tiny", has_weights=False, has_tokenizer=False))


@pytest.mark.parametrize(
    ("mode", "steps"),
    [("piecewise", {"prefill"}), ("full_decode_only", {"decode"}), ("full_and_piecewise", {"decode", "prefill"})],
)
def test_the_steps_of_a_model_are_those_that_its_mode_captures(
    mode: str,
    steps: set[str],
    model: str,
    ostinato_command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ostinato_command("doctor", model, "--device", "cpu", "--mode", mode, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {op["step"] for op in document["ops"]} == steps
    tried = {"full": "decode", "piecewise": "prefill", "breakable": "prefill"}
    assert {name: outcome["step"] for name, outcome in document["modes"].items()} == {
        name: step for name, step in tried.items() if step in steps
    }


@pytest.mark.parametrize("broken", ["decode", "full prefill"])
def test_of_steps_that_share_a_mode_the_one_that_it_fails_for_tells(
    broken: str,
    model: str,
    ostinato_command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ostinato.engine.attention.torch_backend import TorchAttention
    from ostinato.runtime import CaptureSupport, Diagnosis, ModeOutcome
    from ostinato.runtime.ops import Verdict

    names = iter(["decode", "full prefill"])  # smallest first

    def examined(*_: object, modes: tuple[str, ...], **__: object) -> Diagnosis:
        outcomes = {mode: ModeOutcome(is_captured=next(names) != broken) for mode in modes}
        return Diagnosis(verdict=Verdict.FRIENDLY, ops=(), suggested_breaks=(), modes=outcomes)

    # No attention on a CPU takes prompts into one graph.
    monkeypatch.setattr(TorchAttention, "capture_support", CaptureSupport.ALWAYS)
    monkeypatch.setattr("ostinato.engine.execution.examine.diagnose", examined)
    assert ostinato_command("doctor", model, "--device", "cpu", "--mode", "full", "--json") == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    assert list(modes) == ["full"]
    assert (modes["full"]["step"], modes["full"]["works"]) == (broken, False)
    assert not list(names)


def test_a_model_is_examined_step_by_step(
    model: str, ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostinato_command("doctor", model, "--device", "cpu", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["blockers"] == []
    assert {op["step"] for op in document["ops"]} == {"decode", "prefill"}
    assert document["modes"]["full"]["works"]
    decode = {op["reason"] for op in document["ops"] if op["step"] == "decode"}
    assert "in-place write to live state" in decode  # keys and values go to pages inside the full graph
    breakable = document["modes"]["breakable"]
    assert breakable["works"] and (breakable["segments"], breakable["breaks"]) == (3, 2)  # of two layers
    assert any("in break" in op["reason"] for op in document["ops"] if op["step"] == "prefill")
