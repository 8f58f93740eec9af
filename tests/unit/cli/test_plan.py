"""`ostinato plan`: tables, JSON, settings and pictures, and every way to get it wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ostinato.engine.config import EngineConfig
from ostinato.testing.tiny_models import write_tiny_model

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{i // 10:02d}.{i % 10}000000,{20 + 37 * i % 300},{1 + i % 9}\n" for i in range(200)
)


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def run_cli(ostinato_command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def run(*args: Any) -> Done:
        code = ostinato_command(*map(str, args))
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU too."""
    monkeypatch.setattr("ostinato.cli.cost_input._gpu_name", lambda: None)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_a_trace_as_json(run_cli: Any, trace: Path) -> None:
    result = run_cli("plan", "--trace", trace, "--max-graphs", "4", "--json")
    assert result.code == 0
    document = json.loads(result.out)
    assert len(document["decode"]["sizes"]) <= 4 and document["mixed"]["miss_percent"] == 0
    assert document["decode"]["percentiles"].keys() == {"p50", "p90", "p99"}
    assert set(document["peers"]) == {"vllm", "sglang", "tensorrt-llm"}


def test_tables_name_the_plan_and_the_others(run_cli: Any, trace: Path) -> None:
    out = run_cli("plan", "--trace", trace, "--kv-bytes-per-token", "32768").out
    assert "this plan" in out and "sglang" in out and "sizes: " in out and "KV tokens" in out


def test_sizes_are_written_as_an_engines_settings(run_cli: Any, tmp_path: Path) -> None:
    histogram, out = tmp_path / "h.json", tmp_path / "sizes.json"
    histogram.write_text('{"decode": {"1": 9, "3": 4}, "mixed": {"16": 2}}')
    assert run_cli("plan", "--histogram", histogram, "--out", out).code == 0
    settings = json.loads(out.read_text())
    assert settings == {"decode_sizes": [1, 3], "token_sizes": [16]}
    assert EngineConfig(**settings).decode_sizes == (1, 3)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_picture(run_cli: Any, trace: Path, tmp_path: Path) -> None:
    assert run_cli("plan", "--trace", trace, "--plot", tmp_path / "plan.png").code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_files_that_programs_of_windows_have_written(run_cli: Any, tmp_path: Path) -> None:
    """They begin with a byte order mark."""
    histogram, costs = tmp_path / "h.json", tmp_path / "c.json"
    histogram.write_text('{"decode": {"1": 9, "3": 4}}\r\n', encoding="utf-8-sig")
    costs.write_text('{"hardware": "H", "decode": {"1": 0.8}}', encoding="utf-8-sig")
    assert run_cli("plan", "--histogram", histogram, "--cost", costs).code == 0


@pytest.mark.parametrize("option", ["--histogram", "--cost", "--prices"])
def test_a_file_that_goes_too_deep(run_cli: Any, tmp_path: Path, option: str) -> None:
    deep, histogram = tmp_path / "deep.json", tmp_path / "h.json"
    deep.write_text("[" * 100_000)
    histogram.write_text('{"decode": {"1": 9, "3": 4}}')
    result = run_cli("plan", option, deep, *(() if option == "--histogram" else ("--histogram", histogram)))
    assert result.code == 2 and "deep.json is not JSON" in result.err


def test_more_requests_than_a_trace_has_need_no_memory(run_cli: Any, trace: Path) -> None:
    found = [run_cli("plan", "--trace", trace, "--max-num-reqs", most, "--json") for most in ("4096", str(10**30))]
    assert found[0].code == 0 and found[0].out == found[1].out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --trace or --histogram"),
        (["--trace", "TRACE", "--histogram", "TRACE"], "either --trace or --histogram"),
        (["--trace", "nowhere.csv"], "cannot be read"),
        (["--trace", "TRACE", "--load-factor", "0"], "--load-factor is 0"),
        (["--trace", "TRACE", "--chunk-tokens", "0"], "--chunk-tokens is 0"),
        (["--trace", "TRACE", "--max-graphs", "0"], "--max-graphs of 0 allows no graph"),
        (["--trace", "TRACE", "--max-graphs", "-1"], "--max-graphs of -1 allows no graph"),
        (["--trace", "TRACE", "--memory-budget-mib", "0"], "--memory-budget-mib of 0 allows no graph"),
        (["--histogram", "TRACE"], "is not JSON"),
        (["--histogram", "TRACE", "--chunk-tokens", "64"], "--chunk-tokens goes with --trace"),
        (["--histogram", "TRACE", "--max-num-reqs", "8"], "--max-num-reqs goes with --trace"),
        (["--histogram", "TRACE", "--load-factor", "2"], "--load-factor goes with --trace"),
        (["--trace", "TRACE", "--cost", "TRACE"], "is not JSON"),
        (["--trace", "TRACE", "--out", "/nonexistent/sizes.json"], "cannot be written"),
    ],
)
def test_bad_input(run_cli: Any, trace: Path, arguments: list[str], message: str) -> None:
    result = run_cli("plan", *(str(trace) if a == "TRACE" else a for a in arguments))
    assert result.code == 2 and message in result.err


@pytest.mark.parametrize(
    ("out", "plot", "message"),
    [
        ("s.json", "/nonexistent/x.png", "/nonexistent/x.png cannot be written: there is no folder /nonexistent"),
        ("/nonexistent/s.json", "x.png", "/nonexistent/s.json cannot be written"),
        ("s.json", ".", "it is a folder"),
        ("s.json", "s.json", "--out and --plot name the same file"),
    ],
)
def test_no_file_is_written_if_one_cannot_be(
    run_cli: Any, trace: Path, tmp_path: Path, out: str, plot: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ostinato.cli.plan._of_trace", lambda *_, **__: pytest.fail("it did not look before the work"))
    result = run_cli("plan", "--trace", trace, "--out", out, "--plot", plot)
    assert result.code == 2 and message in result.err
    assert not list(folder.iterdir())


def test_no_file_is_written_without_what_draws(
    run_cli: Any, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.bench.plots.has_matplotlib", lambda: False)
    monkeypatch.setattr("ostinato.cli.plan._of_trace", lambda *_, **__: pytest.fail("it did not look before the work"))
    result = run_cli("plan", "--trace", trace, "--out", tmp_path / "s.json", "--plot", tmp_path / "p.png")
    assert result.code == 2 and "error OST100: " in result.err and "pip install 'ostinato[bench]'" in result.err
    assert [path.name for path in tmp_path.iterdir()] == [trace.name]


def test_links_in_a_circle_are_told_before_the_work(
    run_cli: Any, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.cli.plan._of_trace", lambda *_, **__: pytest.fail("it did not look before the work"))
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    result = run_cli("plan", "--trace", trace, "--out", tmp_path / "one")
    assert result.code == 2 and "links go in a circle" in result.err


def test_a_device_is_written_to_in_a_folder_that_is_closed(
    run_cli: Any, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``/dev`` is to whoever is not root, who may write to what is in it."""
    access = os.access
    monkeypatch.setattr("os.access", lambda path, *how: str(path) != "/dev" and access(path, *how))
    assert run_cli("plan", "--trace", trace, "--out", "/dev/null").code == 0
    assert "permission denied" in run_cli("plan", "--trace", trace, "--out", "/dev/sizes.json").err


def test_a_failed_writing_leaves_the_older_file(
    run_cli: Any, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s.json"
    out.write_text("older")

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    result = run_cli("plan", "--trace", trace, "--out", out)
    assert result.code == 2 and "no space left" in result.err
    assert out.read_text() == "older" and [path.name for path in tmp_path.iterdir()].count("s.json") == 1


def test_a_malformed_line_is_named(run_cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,5,1\n2023-11-16 18:17:04.1,five,1\n"
    )
    result = run_cli("plan", "--trace", path)
    assert result.code == 2 and "line 3" in result.err and "ContextTokens" in result.err


def test_costs_of_another_gpu_are_refused(
    run_cli: Any, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"hardware": "NVIDIA H200", "decode": {"1": 0.8, "64": 1.3}}')
    monkeypatch.setattr("ostinato.cli.cost_input._gpu_name", lambda: "NVIDIA L4")
    result = run_cli("plan", "--trace", trace, "--cost", path)
    assert result.code == 2 and "measured on NVIDIA H200, and this is NVIDIA L4" in result.err
    monkeypatch.setattr("ostinato.cli.cost_input._gpu_name", lambda: "NVIDIA H200")
    assert run_cli("plan", "--trace", trace, "--cost", path).code == 0


def test_costs_that_cannot_be_checked_are_said_to_be(
    run_cli: Any, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"hardware": "NVIDIA H200", "decode": {"1": 0.8, "64": 1.3}}')
    result = run_cli("plan", "--trace", trace, "--cost", path, "--json")
    assert result.code == 0 and "measured on NVIDIA H200: there is no GPU here to check that against" in result.err
    units = {kind: json.loads(result.out)[kind]["cost_unit"] for kind in ("decode", "mixed")}
    assert units == {"decode": "measured time", "mixed": "tokens"}
    monkeypatch.setattr("ostinato.cli.cost_input._processor_name", lambda: "NVIDIA H200")
    assert "no GPU" not in run_cli("plan", "--trace", trace, "--cost", path).err


def costs_file(path: Path, *names: str) -> Path:
    """As measured dispatch writes it: in "fx" graphs of 4 are as fast as those of 1, in "breakable" they are not."""
    from ostinato.runtime import BatchKind, CostSample, CostTable, write_costs

    def table(cheap: float) -> CostTable:
        ways = {"full decode graph": {1: 1.0, 4: cheap, 8: 9.0}, "eager": {1: 0.1, 8: 0.1}}
        return CostTable(
            tuple(
                CostSample(kind=BatchKind(uniform_query_len=1), way=way, size=size, ms=ms)
                for way, points in ways.items()
                for size, ms in points.items()
            )
        )

    write_costs(path, {name: table(1.0 if name == "fx" else 4.0) for name in names}, origin={"hardware": "NVIDIA H200"})
    return path


def test_the_file_of_measured_dispatch_decides(run_cli: Any, tmp_path: Path) -> None:
    histogram = tmp_path / "h.json"
    histogram.write_text('{"decode": {"1": 10, "4": 10, "8": 1}}')

    def sizes(*arguments: Any) -> list[int]:
        result = run_cli("plan", "--histogram", histogram, "--cost", *arguments, "--json")
        assert result.code == 0, result.err
        found: list[int] = json.loads(result.out)["decode"]["sizes"]
        return found

    assert sizes(costs_file(tmp_path / "one.json", "fx")) == [4, 8]
    both = costs_file(tmp_path / "both.json", "breakable", "fx")
    assert sizes(both, "--partition", "fx") == [4, 8]
    assert sizes(both, "--partition", "breakable") == [1, 4, 8]
    result = run_cli("plan", "--histogram", histogram, "--cost", both)
    assert result.code == 2 and "has the costs of breakable, fx" in result.err and "--partition" in result.err
    result = run_cli("plan", "--histogram", histogram, "--cost", both, "--partition", "fy")
    assert result.code == 2 and "'fy'" in result.err and "valid: breakable, fx" in result.err


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "does not say where it was measured"),
        ({"decode": {"1": 0.8}}, "does not say where it was measured"),
        ({"hardware": "H"}, "has no costs"),
        ({"hardware": "H", "decode": [1]}, "'decode' must map sizes to times"),
        ({"hardware": "H", "decode": {"1": -1}}, "the cost curve has"),
        ({"format": 2, "origin": {}, "tables": {}}, "does not say where it was measured"),
        ({"format": 2, "origin": {"hardware": "H"}, "tables": {}}, "has the costs of no partition"),
        ({"format": 2, "origin": {"hardware": "H"}, "tables": {"fx": []}}, "table 'fx': no graph was measured"),
        ({"origin": {"hardware": "H"}, "tables": {"fx": []}}, "error OST104: "),
        ({"origin": {"hardware": "H"}, "tables": {"fx": []}}, "measured with format 1, and here it is 2"),
        ({"format": "2", "origin": {"hardware": "H"}, "tables": {}}, "measured with format '2', and here it is 2"),
        ({"format": 2, "origin": {"hardware": "H"}, "tables": {"fx": 3}}, "is no file of measured costs"),
        ({"tables": {"fx": []}}, "it has no origin and tables"),
    ],
)
def test_bad_costs(run_cli: Any, trace: Path, tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(document))
    result = run_cli("plan", "--trace", trace, "--cost", path)
    assert result.code == 2 and message in result.err


def test_a_partition_needs_costs_of_several(run_cli: Any, trace: Path, tmp_path: Path) -> None:
    assert "--partition goes with --cost" in run_cli("plan", "--trace", trace, "--partition", "fx").err
    path = tmp_path / "cost.json"
    path.write_text('{"hardware": "H", "decode": {"1": 0.8}}')
    result = run_cli("plan", "--trace", trace, "--cost", path, "--partition", "fx")
    assert result.code == 2 and "one curve for each kind" in result.err


def test_whose_costs_they_are(run_cli: Any, tmp_path: Path) -> None:
    """As `generate` and `explain` do: by the config, wherever the model lies."""
    from ostinato.engine.execution.model_identity import model_identity
    from ostinato.engine.models import ModelConfig
    from ostinato.runtime import read_costs, write_costs

    folders = {family: write_tiny_model(tmp_path / family, family, has_weights=False) for family in ("llama", "qwen3")}
    config = ModelConfig.from_hf(json.loads((folders["llama"] / "config.json").read_text()))
    costs, histogram = costs_file(tmp_path / "costs.json", "fx"), tmp_path / "h.json"
    tables = read_costs(costs, origin={"hardware": "NVIDIA H200"})
    named = {"hardware": "NVIDIA H200", "model": "my/llama", "model config": model_identity(config)}
    write_costs(costs, tables, origin=named)
    histogram.write_text('{"decode": {"1": 10}}')
    planned = ("plan", "--histogram", histogram, "--cost", costs)
    result = run_cli(*planned)
    assert result.code == 0 and "costs.json has the costs of my/llama on NVIDIA H200: there is no GPU" in result.err
    result = run_cli(*planned, "--model", folders["llama"])
    assert result.code == 0 and "my/llama" not in result.err
    result = run_cli(*planned, "--model", folders["qwen3"])
    assert result.code == 2 and "error OST104: " in result.err and "measured with model my/llama" in result.err
    write_costs(costs, tables, origin={"hardware": "NVIDIA H200"})
    result = run_cli(*planned, "--model", folders["llama"])
    assert result.code == 2 and "measured with model unknown" in result.err


def test_sizes_beyond_the_measured_ones_are_told(run_cli: Any, tmp_path: Path) -> None:
    histogram, costs = tmp_path / "h.json", tmp_path / "c.json"
    histogram.write_text('{"decode": {"1": 10, "3": 10, "5": 10}}')
    costs.write_text('{"hardware": "H", "decode": {"1": 0.8, "4": 1.6}}')
    planned = ("plan", "--histogram", histogram, "--cost", costs)
    assert "No cost was measured of 3, 5: theirs are estimated from sizes that were, 1 to 4; above them: 5." in (
        run_cli(*planned).out
    )
    assert json.loads(run_cli(*planned, "--json").out)["decode"]["estimated"] == [3, 5]
    costs.write_text('{"hardware": "H", "decode": {"1": 0.8, "3": 1.2, "5": 1.6}}')
    assert "No cost" not in run_cli(*planned).out
