"""The evidence file: written row by row, never half, and refused before measuring if it cannot be written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ostinato.bench.evidence import Evidence, output_path
from ostinato.bench.host_pace import host_pace_us
from ostinato.errors import ConfigError

NAMING = {"bench": "decode", "model": "some/model", "hardware": "NVIDIA H200", "day": "2026-11-29"}


def evidence(path: Path | None, **more: Any) -> Evidence:
    return Evidence(
        bench="decode", date="2026-11-29", model="/a/b/model", hardware="NVIDIA H200", versions={}, repeats=3,
        command=["ostinato", "bench", "--json", "/a/b/out"], path=path, **more,
    )  # fmt: skip


def test_each_row_is_on_disk_at_once(tmp_path: Path) -> None:
    found = evidence(tmp_path / "out.json")
    for number in range(2):
        found.add({"batch": number})
        assert [row["batch"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]] == [*range(number + 1)]
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]


def test_a_row_tells_how_slow_the_host_was_around_it(tmp_path: Path) -> None:
    paces = iter([100.0, 90.0, 250.0, 110.0])
    found = evidence(tmp_path / "out.json", pace=lambda: next(paces))
    for number in range(3):
        found.add({"batch": number})
    document = json.loads((tmp_path / "out.json").read_text())
    assert [row["host_pace_us"] for row in document["rows"]] == [100.0, 250.0, 250.0]
    assert any(note.startswith("host_pace_us") for note in document["notes"])
    without = evidence(None)
    without.add({"batch": 1})
    assert without.rows == [{"batch": 1}] and without.notes == []


def test_the_pace_is_the_time_of_some_python() -> None:
    assert 1 < host_pace_us() < 100_000


def test_failures_and_skips_keep_their_reason(tmp_path: Path) -> None:
    said: list[str] = []
    found = evidence(tmp_path / "out.json", say=said.append)
    found.fail("fx", RuntimeError("no"))
    found.fail("full", ConfigError("bad", fix="mend it"))
    found.skip("vllm", "not installed")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["failed"] == {"fx": "RuntimeError: no", "full": "[OST100] bad Fix: mend it"}
    assert document["skipped"] == {"vllm": "not installed"}
    assert len(said) == 3


def test_no_folder_of_the_machine_is_in_it() -> None:
    document = evidence(None).to_dict()
    assert (document["model"], document["command"]) == ("model", ["ostinato", "bench", "--json", "out"])


def test_a_folder_gets_a_file_with_the_usual_name_and_none_is_overwritten(tmp_path: Path) -> None:
    first = output_path(f"{tmp_path}/new/", **NAMING)
    assert first == tmp_path / "new" / "decode_model_h200_20261129.json"
    first.write_text("{}")
    assert output_path(str(tmp_path / "new"), **NAMING).name == "decode_model_h200_20261129_2.json"
    assert output_path(str(tmp_path / "new"), **NAMING, suffix="png").name == "decode_model_h200_20261129.png"


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    assert output_path(str(tmp_path / "x.json"), **NAMING) == tmp_path / "x.json"


@pytest.mark.parametrize("given", ["absent/x.json", "file/x.json", "file/", "file/deeper/"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, given: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        output_path(f"{tmp_path}/{given}", **NAMING)


def test_what_is_no_file_and_has_no_name_is_refused(tmp_path: Path) -> None:
    """Evidence is written again with each row: a pipe or device would get it as often, or be replaced."""
    os.mkfifo(tmp_path / "pipe")
    for given in (str(tmp_path / "pipe"), ""):
        with pytest.raises(ConfigError, match="cannot be written: it"):
            output_path(given, **NAMING)
    assert (tmp_path / "pipe").is_fifo()
