"""Host work of one decode step without a model: schedule, write the inputs, read the tokens, stop rules, delivery.

``python benchmarks/host_step.py --tokenizer FOLDER --json OUT/`` steps the engine's loop over an executor that computes
nothing: it writes the step's inputs as the real one does and answers with random tokens. Nobody waits, and nobody ends
while it is measured. ``--against TREE`` measures another checkout's ``src`` too, in processes that take turns, since
the clock of a shared machine drifts: compare rows of one file.

Rows, by requests in the batch: ``answers`` are collected for `LLM.generate`, ``streams`` are received update by update,
with a tokenizer (``text``) and without. ``write_us`` is `BatchWriter.write` alone, which ``step_us`` contains; neither
counts launches, copies or the dispatch of a graph (``ostinato bench decode`` does: ``host_us``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ostinato import runtime
from ostinato.bench.environment import versions
from ostinato.bench.evidence import Evidence, output_path
from ostinato.bench.naming import short_hardware
from ostinato.engine.execution.batch_slots import batch_slots
from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.loop import EngineLoop
from ostinato.engine.outputs import RequestOutput, UpdateRouter
from ostinato.engine.paging import PageAllocator, pages_for
from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.scheduler import Scheduler
from ostinato.engine.text import Tokenizer
from ostinato.runtime import hardware_name

BATCHES = (1, 8, 64, 256, 512)
MAX_MODEL_LEN = 4096
PAGE_SIZE = 16
CHUNK_STEPS = 32
"""Steps a time: as many as two pages of each request, so that every chunk allocates alike."""
FIRST_ID, LAST_ID = 300, 30_000
"""Random tokens lie between: text in any tokenizer of a usual size, and no end token."""


_HostSlots: Any = getattr(runtime, "HostSlots", dict)  # an older tree, measured against this one, takes plain dicts


class WritingExecutor:
    """Writes each step's inputs and answers with random tokens."""

    def __init__(self, num_reqs: int) -> None:
        self._writer = BatchWriter(max_num_reqs=num_reqs, max_model_len=MAX_MODEL_LEN, page_size=PAGE_SIZE, seed=0)
        self._slots = batch_slots(
            vocab_size=LAST_ID,
            max_model_len=MAX_MODEL_LEN,
            max_num_reqs=num_reqs,
            num_pages=1 << 20,
            page_size=PAGE_SIZE,
        )
        self._num_reqs = num_reqs
        self._by_place: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self._answers = torch.randint(FIRST_ID, LAST_ID, (61, num_reqs), generator=torch.Generator().manual_seed(0))
        self._logits = torch.zeros(num_reqs, 8)
        self.num_steps = 0
        self.write_seconds = 0.0

    def execute(self, batch: Any) -> Any:
        """Launch nothing."""
        began = time.perf_counter()
        self._writer.write(self._host(batch.num_tokens), batch)
        self.write_seconds += time.perf_counter() - began
        self.num_steps += 1
        num = len(batch.sampling)
        token_ids = self._answers[self.num_steps % len(self._answers), :num]
        return SimpleNamespace(logits=self._logits[:num], token_ids=token_ids, errors={}, labels=None)

    def _host(self, num_tokens: int) -> dict[str, torch.Tensor]:
        """Two memories in turn, as a device has them."""
        place = num_tokens, self.num_steps % 2
        if place not in self._by_place:
            sizes = {"num_tokens": num_tokens, "num_reqs": self._num_reqs}
            self._by_place[place] = _HostSlots(
                {
                    name: torch.zeros((slot.rows(sizes), *slot.shape[1:]), dtype=slot.dtype)
                    for name, slot in self._slots.items()
                }
            )
        return self._by_place[place]


def measure(num_reqs: int, tokenizer: Tokenizer | None, *, is_streamed: bool, num_chunks: int) -> dict[str, Any]:
    """Microseconds of a step: the median over chunks of steps."""
    executor = WritingExecutor(num_reqs)
    scheduler = Scheduler(
        max_num_reqs=num_reqs,
        max_num_batched_tokens=8192,
        max_model_len=MAX_MODEL_LEN,
        allocator=PageAllocator(1 + num_reqs * pages_for(MAX_MODEL_LEN, PAGE_SIZE), PAGE_SIZE),
    )
    loop = EngineLoop(
        executor, scheduler, tokenizer=tokenizer, eos_token_ids=(1, 2), max_model_len=MAX_MODEL_LEN, overlap=True
    )
    router = UpdateRouter(loop, lambda: None)
    knows_streams = "is_streamed" in Request.__dataclass_fields__  # not in checkouts before it came
    settings: dict[str, Any] = {"is_streamed": is_streamed} if knows_streams else {}
    params = SamplingParams(max_tokens=MAX_MODEL_LEN)
    received: list[Any] = []
    for index in range(num_reqs):
        name = str(index)
        prompt = [5] * (1 + index % PAGE_SIZE)  # pages fill up in turn, as they do in traffic
        loop.add(Request(request_id=name, prompt_token_ids=prompt, params=params, **settings))
        output = RequestOutput(request_id=name, prompt=None)
        router.register(name, received.append if is_streamed else output.extend)

    def chunk() -> tuple[float, float]:
        received.clear()
        executor.write_seconds = 0.0
        began = time.perf_counter()
        for _ in range(CHUNK_STEPS):
            router.step()
        return tuple(s / CHUNK_STEPS * 1e6 for s in (time.perf_counter() - began, executor.write_seconds))  # type: ignore[return-value]

    chunk()
    times = [chunk() for _ in range(num_chunks)]
    assert len(scheduler.running) == num_reqs and not scheduler.waiting, "nobody may end while it is measured"
    return {
        "batch": num_reqs,
        "kind": "streams" if is_streamed else "answers",
        "text": tokenizer is not None,
        "step_us": statistics.median(step for step, _ in times),
        "write_us": statistics.median(write for _, write in times),
    }


def measure_all(tokenizer_folder: str | None, num_chunks: int) -> list[dict[str, Any]]:
    """Every row once, in this process."""
    torch.set_num_threads(1)
    tokenizers = [None, *([Tokenizer.from_directory(tokenizer_folder)] if tokenizer_folder else [])]
    return [
        measure(num_reqs, tokenizer, is_streamed=is_streamed, num_chunks=num_chunks)
        for tokenizer in tokenizers
        for is_streamed in (False, True)
        for num_reqs in BATCHES
    ]


def measured_in(source: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """`measure_all` in a process of its own, with the package in ``source``."""
    command = [sys.executable, __file__, "--child", f"--chunks={args.chunks}"]
    command += ["--tokenizer", args.tokenizer] if args.tokenizer else []
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main() -> None:
    """Measure this checkout, and another in turn with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", help="folder with a tokenizer.json")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--note", help="kept in the file: which checkout, which tokenizer")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each")
    parser.add_argument("--chunks", type=int, default=12, help=f"times of {CHUNK_STEPS} steps a process")
    parser.add_argument("--json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure_all(args.tokenizer, args.chunks)))
        return
    device = torch.device("cpu")
    day, hardware = time.strftime("%Y-%m-%d"), hardware_name(device)
    evidence = Evidence(
        bench="host_step",
        date=day,
        model="none",
        hardware=hardware,
        versions=versions(device),
        command=["python", "benchmarks/host_step.py", f"--repeats={args.repeats}", f"--chunks={args.chunks}"],
        repeats=args.repeats,
        config={"batches": BATCHES, "page_size": PAGE_SIZE, "chunk_steps": CHUNK_STEPS, "max_model_len": MAX_MODEL_LEN},
        say=print,
    )
    if args.json:
        names = {"bench": "host_step", "model": "none", "hardware": short_hardware(hardware), "day": day}
        evidence.path = output_path(args.json, **names)
    if args.note:
        evidence.note(args.note)
    trees = {"here": Path(__file__).parents[1] / "src"}
    if args.against:
        trees["against"] = args.against.resolve() / "src"
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in trees}
    for _ in range(args.repeats):
        for name, source in trees.items():
            found[name].append(measured_in(source, args))
    for same in zip(*(rows for runs in found.values() for rows in runs), strict=True):
        row: dict[str, Any] = {key: same[0][key] for key in ("batch", "kind", "text")}
        for place, name in enumerate(trees):
            own = same[place * args.repeats : (place + 1) * args.repeats]
            suffix = "" if name == "here" else f"_{name}"
            for key in ("step_us", "write_us"):
                values = [each[key] for each in own]
                row[f"{key}{suffix}"] = round(statistics.median(values), 1)
                row[f"{key}{suffix}_spread"] = [round(min(values), 1), round(max(values), 1)]
        if args.against:
            row["ratio"] = round(row["step_us_against"] / row["step_us"], 2)
            # On a machine with other work the least disturbed process of each says more than the median.
            row["ratio_of_lowest"] = round(row["step_us_against_spread"][0] / row["step_us_spread"][0], 2)
        evidence.add(row)


if __name__ == "__main__":
    main()
