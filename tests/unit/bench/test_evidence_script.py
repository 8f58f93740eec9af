"""`benchmarks/evidence.sh` with a Python that only notes how it was called: the stages ask for what they say they do.

Each command then goes through the command line's own parser, up to where something would be measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.bench import BenchConfig
from ostinato.cli import bench
from ostinato.cli.app import main

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "evidence.sh"
NOTING = """\
#!{python} -S
import json, os, shutil, sys
given = sys.argv[1:]
for index, argument in enumerate(given):  # what a stage removes or writes over later
    if argument == "--config":
        shutil.copy(given[index + 1], "{folder}/config.json")
        given[index + 1] = "{folder}/config.json"
with open("{folder}/calls", "a") as calls:
    calls.write(json.dumps([os.environ.get("OSTINATO_CACHE"), *given]) + "\\n")
"""

Calls = Callable[..., list[list[Any]]]


@pytest.fixture
def calls_of(tmp_path: Path) -> Calls:
    """The cache and the arguments of each Python that a stage starts."""
    python = tmp_path / "python"
    python.write_text(NOTING.format(python=sys.executable, folder=tmp_path))
    python.chmod(0o755)

    def run(stage: str, **variables: str) -> list[list[Any]]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACE")}
        settings = {"PYTHON": str(python), "OUT": str(tmp_path / "out"), "TMPDIR": str(tmp_path), **variables}
        done = subprocess.run(["bash", str(SCRIPT), stage], env={**kept, **settings}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return run


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], tuple[str, BenchConfig]]:
    """Scenario and settings of such a call."""
    found: list[tuple[str, BenchConfig]] = []
    monkeypatch.setattr(bench, "_run", lambda scenario, config, **outputs: found.append((scenario, config)))

    def parse(call: list[Any]) -> tuple[str, BenchConfig]:
        assert call[1:4] == ["-m", "ostinato", "bench"]
        with pytest.raises(SystemExit) as stopped:
            main(call[3:])
        assert not stopped.value.code
        return found[-1]

    return parse


@pytest.mark.parametrize("stage", ["decode", "decode_large", "prefill", "prefill_large"])
def test_busy_time_is_filled(calls_of: Calls, parsed: Any, stage: str) -> None:
    calls = calls_of(stage)
    assert len(calls) == 1
    for call in calls:
        scenario, config = parsed(call)
        assert stage.startswith(scenario) and config.is_profiled is not False


def test_a_trace_is_replayed_where_one_is_named(calls_of: Calls, parsed: Any, tmp_path: Path) -> None:
    assert len(calls_of("serve")) == 1
    trace = tmp_path / "some.csv"
    at_a_rate, replay = calls_of("serve", TRACE=str(trace), TRACE_SPEED="3")[1:]
    assert parsed(at_a_rate)[1].trace is None
    scenario, config = parsed(replay)
    assert (scenario, config.trace, config.trace_speed, config.num_requests) == ("serve", trace, 3.0, 2000)


def test_tuned_kernels_stand_beside_the_default_ones(calls_of: Calls, parsed: Any) -> None:
    default, tuned = calls_of("tune")
    assert default[0] == tuned[0] != os.environ.get("OSTINATO_CACHE"), "what was tuned here before is not the default"
    (_, by_default), (_, by_tuning) = parsed(default), parsed(tuned)
    assert (by_default.engine.tune_linears, by_tuning.engine.tune_linears) == (False, True)
    assert default[-1] != tuned[-1] and Path(tuned[-1]).name.startswith("decode_tuned_")


def test_host_parts_is_a_stage(calls_of: Calls) -> None:
    (call,) = calls_of("host_parts")
    assert call[1] == "benchmarks/host_parts.py" and (SCRIPT.parents[1] / call[1]).is_file()
