"""`benchmarks/eager_host.py`: it runs the steps that an engine runs, kernel by kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_a_step_launches_what_a_step_on_a_gpu_launches(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/eager_host.py"), "--repeats=1", "--times=2"]
    command += ["--against", str(ROOT), "--json", str(tmp_path)]
    subprocess.run(command, check=True, env=os.environ, capture_output=True)
    (file,) = tmp_path.glob("eager_host_llama-3.2-1b_*.json")
    rows = {(row["kind"], row["rows"]): row for row in json.loads(file.read_text())["rows"]}
    layers = 16
    # Norm and projection, attention, projection, norm and gated projection, projection; the head.
    assert (rows["decode", 1]["kernels"], rows["decode", 1]["products"]) == (5 * layers + 1, 0)
    # Two norms, attention, three projections, and a fourth by the library; the last norm of both kinds, the head.
    assert (rows["decode", 8]["kernels"], rows["decode", 8]["products"]) == (6 * layers + 2, layers)
    # Two norms, writing keys and values, attention, gating; four products.
    assert (rows["prompt", 1024]["kernels"], rows["prompt", 1024]["products"]) == (5 * layers + 2, 4 * layers)
    assert rows["break of a decode", 29]["kernels"] == 1 and rows["break of a prompt", 200]["kernels"] == 2
    for row in rows.values():
        assert row["step_us"] > 0 and row["ratio"] > 0
        assert row.get("layer_us", 1) is not None
