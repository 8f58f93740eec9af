"""Runs the ``_cases.py`` beside it through Triton's interpreter, each in a process (see `test_triton_kernels.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import ostinato


def release(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(package).split(".")[:2])


def runs_interpreted() -> bool:
    return find_spec("triton") is not None and (release("triton") >= (3, 7) or release("numpy") < (2, 4))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(not runs_interpreted(), reason="the interpreter of triton before 3.7 breaks on numpy from 2.4 on")
@pytest.mark.parametrize("cases", ["linear_cases.py", "sampling_cases.py"])
def test_kernels_under_the_interpreter(cases: str) -> None:
    file = Path(__file__).with_name(cases)
    source = str(Path(ostinato.__file__).parent.parent)
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
