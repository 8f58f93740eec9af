"""`ostinato bench`: table, files, exit codes, bad input, and `python -m ostinato`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.testing.tiny_models import write_tiny_model

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[str, ...]:
    folder = write_tiny_model(tmp_path / "tiny", has_weights=False, has_tokenizer=False)
    return ("--model", str(folder), "--load-format", "dummy", "--device", "cpu")


def test_a_run_prints_a_table_and_leaves_evidence_and_a_plot(
    ostinato_command: Command, capsys: Capture, tmp_path: Path, tiny: tuple[str, ...]
) -> None:
    pytest.importorskip("matplotlib")
    out = f"{tmp_path}/out/"
    args = ("--tokens", "4,8", "--modes", "none", "--repeats", "1", "--json", out, "--plot", out)
    assert ostinato_command("bench", "prefill", *tiny, *args) == 0
    printed = capsys.readouterr()
    assert "| mode | tokens | ttft_ms" in printed.out
    json_file, png_file = sorted((tmp_path / "out").iterdir())
    assert json_file.name.startswith("prefill_tiny_") and png_file.suffix == ".png"
    assert [row["tokens"] for row in json.loads(json_file.read_text())["rows"]] == [4, 8]
    assert str(json_file) in printed.err


def test_without_matplotlib_the_plot_is_skipped(
    ostinato_command: Command, capsys: Capture, tmp_path: Path, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.bench.plots.has_matplotlib", lambda: False)
    args = ("--tokens", "4", "--modes", "none", "--repeats", "1", "--plot", str(tmp_path / "x.png"))
    assert ostinato_command("bench", "prefill", *tiny, *args) == 0
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_failed_rows_make_the_exit_code_1(
    ostinato_command: Command, capsys: Capture, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("ostinato.bench.scenarios.prefill._row", fails)
    assert ostinato_command("bench", "prefill", *tiny, "--tokens", "4", "--modes", "none") == 1
    assert "failed: none tokens 4: RuntimeError: out of luck" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("decoding",), "did you mean 'decode'?"),
        (("decode", "--batches", "0"), "batches must be"),
        (("decode", "--batches", "one"), "batches is 'one'"),
        (("decode", "--rates", "5"), "it belongs to background, serve"),
        (("decode", "--peer", "vlm"), "did you mean 'vllm'?"),
        (("decode", "--capture", "background"), "measures captured graphs"),
        (("decode", "--on-moved", "recaptured"), "did you mean 'recapture'?"),
        (("serve", "--rates", "fast"), "rates is 'fast'"),
        (("serve", "--trace", "absent.csv"), "cannot be read"),
        (("decode", "--json", "absent/x.json"), "cannot be written"),
        (("decode", "--plot", "absent/x.png"), "cannot be written"),
    ],
)
def test_bad_input_is_a_typed_error(
    ostinato_command: Command, capsys: Capture, tiny: tuple[str, ...], args: tuple[str, ...], says: str
) -> None:
    assert ostinato_command("bench", *args, *tiny) == 2
    printed = capsys.readouterr()
    text = printed.err + printed.out.replace("\\'", "'")  # with --json the error is an object on standard output
    assert says in text and "OST1" in text


def test_the_package_can_be_run(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "ostinato", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "ostinato")
