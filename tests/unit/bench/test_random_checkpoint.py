"""`benchmarks/random_checkpoint.py` writes what an engine loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import load_model
from ostinato.testing.tiny_models import tiny_config

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "random_checkpoint.py"


def write(folder: Path, family: str, *options: str) -> subprocess.CompletedProcess[str]:
    shape = folder / "shape"
    shape.mkdir(exist_ok=True)
    (shape / "config.json").write_text(json.dumps(tiny_config(family)))
    command = [sys.executable, str(SCRIPT), "--model", str(shape), "--out", str(folder / "model"), *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(("family", "num_shards"), [("llama", 4), ("qwen2", 1)])
def test_an_engine_loads_it(tmp_path: Path, family: str, num_shards: int) -> None:
    done = write(tmp_path, family, "--shards", str(num_shards))
    assert done.returncode == 0, done.stderr
    sizes = [file.stat().st_size for file in (tmp_path / "model").glob("*.safetensors")]
    assert len(sizes) == num_shards and max(sizes) < 2 * min(sizes)
    loaded = load_model(EngineConfig(model=str(tmp_path / "model"), device="cpu", dtype="bfloat16"))
    weights = loaded.model.embedding.float()
    assert weights.dtype is torch.float32 and 0.018 < weights.std() < 0.022 and abs(weights.mean()) < 0.001
    again = write(tmp_path, family)
    assert again.returncode != 0 and "FileExistsError" in again.stderr, "nothing is overwritten"
