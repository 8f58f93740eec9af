"""What may not be loaded where, checked by loading it (the import contracts check the same by reading)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.testing.tiny_models import write_tiny_model

# These decide; they know no device. Importing them, packages included, must not load torch.
DECISIONS = [
    "ostinato.errors",
    "ostinato.telemetry",
    "ostinato.runtime.config",
    "ostinato.runtime.keys",
    "ostinato.engine.config",
    "ostinato.engine.request",
    "ostinato.engine.paging",
    "ostinato.engine.scheduler",
]

# Refuse the named packages as if they were not installed.
BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"refused: {{name}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run_without(blocked: set[str], statement: str) -> subprocess.CompletedProcess[str]:
    code = BLOCK.format(blocked=blocked) + statement
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("module", DECISIONS)
def test_decisions_load_without_torch(module: str) -> None:
    done = run_without({"torch"}, f"import {module}")
    assert done.returncode == 0, done.stderr


def test_the_engine_loads_without_the_server_and_the_command_line() -> None:
    done = run_without({"fastapi", "pydantic", "starlette", "uvicorn", "typer"}, "from ostinato import LLM")
    assert done.returncode == 0, done.stderr


def test_the_runtime_needs_torch_and_nothing_else() -> None:
    extras = {"safetensors", "tokenizers", "jinja2", "huggingface_hub", "gguf", "numpy", "typer", "rich", "pydantic"}
    done = run_without(extras, "from ostinato import Graphed, GraphConfig, graph_break")
    assert done.returncode == 0, done.stderr


def test_a_refused_package_is_noticed() -> None:
    done = run_without({"torch"}, "import torch")
    assert done.returncode != 0
    assert "refused: torch" in done.stderr


@pytest.mark.parametrize("capture", ["eager", "background"])
def test_a_start_that_compiles_nothing_loads_no_compiler(tmp_path: Path, capture: str) -> None:
    """Dynamo and what it brings take seconds, of every start until the first token."""
    folder = write_tiny_model(tmp_path)
    statement = (
        "from ostinato import LLM, SamplingParams\n"
        f"with LLM({str(folder)!r}, device='cpu', capture={capture!r}, max_model_len=64, max_num_reqs=2) as llm:\n"
        "    llm.generate([[5, 6]], SamplingParams(max_tokens=2))\n"
        "found = {'torch._dynamo', 'torch._inductor', 'sympy', 'transformers'} & set(sys.modules)\n"
        "assert not found, found"
    )
    done = run_without(set(), statement)
    assert done.returncode == 0, done.stderr
