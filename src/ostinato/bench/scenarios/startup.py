"""``startup``: seconds from the start of a fresh process to its first token, by stage."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import ostinato
from ostinato.bench.run import Run
from ostinato.bench.statistics import summary
from ostinato.errors import EngineError

__all__ = ["STAGES", "check", "measure", "start_process"]

STAGES: Final = ("interpreter", "imports", "weights", "warm_up", "capture", "first_token")
_CACHES: Final = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_TIME_LIMIT_S: Final = 600


def check(run: Run) -> None:
    """Raise if the prompt does not fit the model."""
    run.model_len(_prompt_tokens(run) + 1, what=f"a prompt of {_prompt_tokens(run)}")


def measure(run: Run) -> None:
    """A row for each mode; a process for each repeat."""
    run.evidence.note(
        "interpreter: from the parent's call to the child's first line; imports: torch and the engine; weights: "
        "the model, the KV cache, and the wait for weights that are copied from files meanwhile; before that wait, "
        "with capture in the background or mode none, a made-up step on CUDA that loads or compiles kernels, which "
        "first_token holds otherwise; warm_up holds other compiling; each repeat is a new process"
    )
    if run.config.is_cold:
        run.evidence.note("caches of Triton and Inductor are empty at the start of each process")
    if not _has_byte_code("torch"):
        run.evidence.note("torch's byte code is not cached, and may not be: each process compiles its sources anew")
    for mode in run.config.modes or ("full_and_piecewise", "none"):
        with run.variant(mode):
            run.evidence.add(_row(run, mode))


def _has_byte_code(package: str) -> bool:
    """Whether processes find the byte code of ``package``, or leave it for those behind them."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not sys.dont_write_bytecode:
        return True
    return Path(importlib.util.cache_from_source(spec.origin)).exists()


def _prompt_tokens(run: Run) -> int:
    return run.config.prompt_tokens or 16


def _row(run: Run, mode: str) -> dict[str, Any]:
    times: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "total")}
    for _ in range(run.repeats):
        stages, child = start_process(run, mode=mode)
        for stage, seconds in stages.items():
            times[stage].append(seconds)
        run.evidence.config[mode] = {**child["config"], "graphs": child["graphs"]}
    row: dict[str, Any] = {"mode": mode, "caches": "empty" if run.config.is_cold else "as they were"}
    for stage, seconds_of in times.items():
        row |= summary(f"{stage}_s", seconds_of)
    return row | {"first_total_s": round(times["total"][0], 3), "num_graphs": child["graphs"]["count"]}


def start_process(run: Run, **settings_given: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of each stage of a fresh process with these settings of the engine, and what it said."""
    settings = dataclasses.asdict(dataclasses.replace(run.config.engine, **settings_given))
    task = json.dumps({"settings": settings, "prompt": run.prompts(1, _prompt_tokens(run))[0]})
    source = str(Path(ostinato.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryDirectory() as empty:
        if run.config.is_cold:
            environment |= {name: str(Path(empty) / name.lower()) for name in _CACHES}
        command = [sys.executable, "-m", "ostinato.bench.startup_child"]
        began = time.monotonic()
        done = subprocess.run(
            command, input=task, capture_output=True, text=True, env=environment, timeout=_TIME_LIMIT_S
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineError(f"the fresh process ended with {done.returncode}: {last}", fix="run the same mode by itself")
    child: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    prepare, capture = child["prepare_seconds"], child["capture_seconds"]
    return {
        "interpreter": child["began"] - began,
        "imports": child["imported"] - child["began"],
        "weights": child["loaded"] - child["imported"] - prepare,
        "warm_up": prepare - capture,
        "capture": capture,
        "first_token": child["answered"] - child["loaded"],
        "total": child["answered"] - began,
    }, child
