"""The import contracts of pyproject.toml hold for the source, and each one catches what it is there for.

The second half plants one violation at a time in a skeleton package of the same layout and expects the
contract to be broken by name. It guards the contracts against typing errors: an expression with a
wildcard that matches nothing is silently kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SKELETON = """
cli/app server/app server/routes server/schema bench/report testing/compare telemetry/events
runtime/graphed runtime/assembly runtime/resize runtime/steps/live runtime/stages
runtime/config runtime/breaks runtime/keys runtime/ops/rules runtime/memory/ledger
runtime/capture/cuda runtime/buffers/static runtime/planning/ladders runtime/runners/full
runtime/dispatch/policy runtime/dispatch/resolve runtime/doctor/probe runtime/qualify/compare
engine/llm engine/loop engine/config engine/request engine/scheduler/queue engine/paging/allocator
engine/kvcache/storage engine/execution/step engine/attention/torch engine/layers/linear engine/models/llama
engine/weights/safetensors engine/sampling/greedy engine/text/tokenizer
"""

# (file that gets the import, the import, the contract that must break)
VIOLATIONS = [
    ("runtime/graphed", "import ostinato.engine.llm", "packages"),
    ("engine/loop", "import ostinato.server.app", "packages"),
    ("server/app", "import ostinato.bench.report", "packages"),
    ("errors", "import ostinato.telemetry", "packages"),
    ("newroom/thing", "", "packages"),
    ("runtime/capture/cuda", "import ostinato.runtime.runners.full", "inside runtime"),
    ("runtime/doctor/probe", "import ostinato.runtime.dispatch.policy", "inside runtime"),
    ("runtime/steps/live", "import ostinato.runtime.resize", "inside runtime"),
    ("runtime/resize", "import ostinato.runtime.assembly", "inside runtime"),
    ("runtime/stages", "import ostinato.runtime.dispatch.policy", "inside runtime"),
    ("runtime/shelf/thing", "", "inside runtime"),
    ("engine/paging/allocator", "import ostinato.engine.scheduler.queue", "inside engine"),
    ("engine/layers/linear", "import ostinato.engine.weights.safetensors", "inside engine"),
    ("engine/shelf/thing", "", "inside engine"),
    ("server/schema", "import ostinato.server.routes", "inside server"),
    ("engine/execution/step", "import ostinato.runtime.capture.cuda", "runtime internals are private"),
    ("engine/execution/step", "import ostinato.runtime.steps.live", "runtime internals are private"),
    ("cli/app", "import ostinato.runtime.graphed", "runtime internals are private"),
    ("cli/app", "import ostinato.runtime.assembly", "runtime internals are private"),
    ("testing/compare", "import ostinato.runtime.capture", "runtime internals are private"),
    ("engine/loop", "import ostinato.runtime", "one seam from engine to runtime"),
    ("engine/models/llama", "import ostinato.runtime.config", "one seam from engine to runtime"),
    ("engine/scheduler/queue", "import torch", "decisions know no device"),
    ("engine/config", "import torch", "decisions know no device"),
    ("runtime/memory/ledger", "import torch", "decisions know no device"),
    ("runtime/keys", "import torch", "decisions know no device"),
    ("runtime/graphed", "import pydantic", "heavy libraries stay at their edge"),
    ("engine/llm", "import typer", "heavy libraries stay at their edge"),
    ("engine/models/llama", "import safetensors", "hub libraries stay in text and weights"),
    ("cli/app", "import tokenizers", "hub libraries stay in text and weights"),
    ("telemetry/events", "import prometheus_client", "the metrics library stays in one file"),
    ("telemetry/events", "import ostinato.telemetry.sinks", "no cycles"),
]

# Imports that the contracts must allow.
ALLOWED = [
    ("engine/execution/step", "import ostinato.runtime"),
    ("engine/models/llama", "import ostinato.runtime.breaks"),
    ("engine/attention/torch", "import ostinato.runtime.keys"),
    ("engine/text/tokenizer", "import tokenizers"),
    ("engine/weights/safetensors", "import safetensors"),
    ("server/schema", "import pydantic"),
    ("testing/conformance/capture", "import ostinato.runtime.capture"),
    ("cli/app", "import ostinato.engine.llm"),
]


def lint_imports(folder: Path, source: Path) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).parent / "lint-imports"),
        "--no-cache",
        "--config",
        str(ROOT / "pyproject.toml"),
    ]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(source)}, capture_output=True, text=True)


def add_import(source: Path, where: str, statement: str) -> None:
    file = source / "ostinato" / f"{where}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.parent != source / "ostinato":
        (file.parent / "__init__.py").touch()
    with file.open("a", encoding="utf-8") as stream:
        stream.write(statement + "\n")


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    for where in [*SKELETON.split(), "errors", "_version", "_lazy", "_whole_file", "__init__", "telemetry/sinks"]:
        add_import(tmp_path, where, "")
    return tmp_path


def test_the_source_keeps_every_contract() -> None:
    done = lint_imports(ROOT, ROOT / "src")
    assert done.returncode == 0, done.stdout


def test_the_skeleton_keeps_every_contract(skeleton: Path) -> None:
    for where, statement in ALLOWED:
        add_import(skeleton, where, statement)
    done = lint_imports(skeleton, skeleton)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("where", "statement", "contract"), VIOLATIONS)
def test_a_violation_is_caught(skeleton: Path, where: str, statement: str, contract: str) -> None:
    add_import(skeleton, where, statement)
    if contract == "no cycles":  # a cycle inside one layer, which no layers contract sees
        add_import(skeleton, "telemetry/sinks", "import ostinato.telemetry.events")
    done = lint_imports(skeleton, skeleton)
    broken = [line.removesuffix(" BROKEN") for line in done.stdout.splitlines() if line.endswith(" BROKEN")]
    assert done.returncode == 1, done.stdout
    assert contract in broken, done.stdout


def test_lint_imports_is_installed() -> None:
    assert shutil.which("lint-imports", path=str(Path(sys.executable).parent))
