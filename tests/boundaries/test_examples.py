"""Every script in examples/ runs as a user would run it; the runtime's own need no engine.

Each asserts what it claims (answers that equal eager, counts), so exit code 0 says more than "no crash".
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUNTIME_ONLY = ["01_any_module.py", "04_breakable.py"]

# Runs the script as __main__, then says whether anything of the engine was imported on the way.
WATCHED = """
import runpy, sys
script = sys.argv[1]
sys.argv = sys.argv[1:]
runpy.run_path(script, run_name="__main__")
print("engine modules:", sorted(name for name in sys.modules if name.startswith("ostinato.engine")))
"""


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", RUNTIME_ONLY)
def test_it_runs_on_a_cpu_without_the_engine(name: str, tmp_path: Path) -> None:
    out = run(tmp_path, "-c", WATCHED, str(ROOT / "examples" / name), "--device", "cpu")
    assert "every answer equals eager" in out
    assert out.rstrip().endswith("engine modules: []")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", RUNTIME_ONLY)
def test_it_runs_on_a_gpu(name: str, tmp_path: Path) -> None:
    assert "every answer equals eager" in run(tmp_path, str(ROOT / "examples" / name), "--device", "cuda")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_its_docstring_says_how_to_run_it(path: Path) -> None:
    assert f"    python examples/{path.name}" in path.read_text(encoding="utf-8")


def test_every_example_is_run_by_a_test() -> None:
    assert [path.name for path in EXAMPLES] == RUNTIME_ONLY
