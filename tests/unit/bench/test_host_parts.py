"""`benchmarks/host_parts.py` on a tiny model: parts are met as often as a step has them, and no clock stays."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from ostinato.testing.tiny_models import write_tiny_model

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "host_parts.py"
BATCH = 3


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("host_parts", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_time_within_another_part_counts_once(script: ModuleType) -> None:
    moment = [0.0]

    def spend(seconds: float) -> None:
        moment[0] += seconds

    clocks = script.PartClocks(now=lambda: moment[0])
    inner = clocks.around("inner", lambda: spend(2.0))

    def work() -> None:
        spend(1.0)
        inner()
        inner()
        spend(0.5)

    outer = clocks.around("outer", work)
    outer()
    outer()
    assert clocks.seconds == {"inner": 8.0, "outer": 3.0} and clocks.calls == {"inner": 4, "outer": 2}


def test_a_call_that_raises_is_clocked_and_every_clock_is_taken_away(script: ModuleType) -> None:
    before = {(owner, name): owner.__dict__[name] for part in script.PARTS.values() for owner, name in part}
    clocks = script.PartClocks()

    def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"), clocks.running():
        assert all(owner.__dict__[name] is not function for (owner, name), function in before.items())
        clocks.around("text", fail)()
    assert clocks.calls["text"] == 1
    assert all(owner.__dict__[name] is function for (owner, name), function in before.items())


def test_both_kinds_are_told_by_part(script: ModuleType, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", has_weights=False, has_tokenizer=False)
    options = ["--device=cpu", f"--batch={BATCH}", "--prompt-tokens=5", "--repeats=1"]
    evidence = script.main([f"--model={model}", *options, f"--json={tmp_path}/"])
    document = json.loads(evidence.path.read_text())
    assert evidence.path.name.startswith("host_parts_tiny_") and str(tmp_path) not in evidence.path.read_text()
    assert document["config"]["engine"]["overlap"] is True
    answers, streams = document["rows"]
    for row in (answers, streams):
        assert row["text"] is True
        assert min(row["step_us"], row["launch_us"], row["clocks_us"]) > 0, "of the others a noisy machine may take any"
        parts = sum(row[f"{part}_us"] for part in script.PARTS)
        assert parts == pytest.approx(row["clocked_step_us"], abs=1.0)
        each = {"schedule": 1, "write_inputs": 1, "upload": 2, "decide_and_guards": 3, "launch": 1, "wait": 1}
        each |= {"way_back": 3, "books": 2, "other": 1}
        assert {part: row["calls"][part] for part in each} == each
    assert (answers["calls"]["text"], streams["calls"]["text"]) == (0, BATCH)
    # A step, its hand-out, and for streams the updates that nobody registered for.
    assert (answers["calls"]["delivery"], streams["calls"]["delivery"]) == (2, 3)
