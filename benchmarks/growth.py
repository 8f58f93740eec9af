"""How a decode step grows: device time with batch and context, scheduler time with batch and queue.

``python benchmarks/growth.py --model benchmarks/models/llama-3.2-1b --json OUT/`` captures decode graphs of the
batches and replays each alone with contexts of the given lengths (pages spread over the cache). The scheduler is
measured without a model, with the calls that the engine's loop makes of it in a step, steps overlapping; its cost must
follow the running batch, not the queue. On a CPU only the second part means something: ``--part scheduler``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque

import numpy as np
import torch

from ostinato import LLM
from ostinato.bench.engine_probe import replay_ms
from ostinato.bench.environment import versions
from ostinato.bench.evidence import Evidence, output_path
from ostinato.bench.naming import short_hardware
from ostinato.bench.statistics import summary
from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.runtime import hardware_name

BATCHES = (1, 8, 64, 256, 512)
CONTEXTS = (128, 1024, 4096, 16384, 32768)
QUEUES = (16, 100, 1000, 10_000)
MAX_PAIR_TOKENS = 1 << 21
"""Requests times context of a pair that is measured: a 1B model's cache holds as many."""


def device_rows(model: str, repeats: int) -> list[dict[str, object]]:
    """Time of the full decode graph by batch and context."""
    settings = {"mode": "full_decode_only", "load_format": "dummy", "max_model_len": max(CONTEXTS)}
    sizes = {"max_num_reqs": max(BATCHES), "decode_sizes": BATCHES, "kv_tokens": MAX_PAIR_TOKENS}
    rows: list[dict[str, object]] = []
    with LLM(model, **settings, **sizes) as llm:
        for key in reversed(llm._require_open().graphed.keys):
            batch = key.num_tokens
            for context in (c for c in CONTEXTS if c * batch <= MAX_PAIR_TOKENS):
                times = replay_ms(llm, key, num_live=batch, context_tokens=context, repeats=repeats)
                rows.append({"part": "device", "batch": batch, "context": context, **summary("step_ms", times)})
    return rows


def scheduler_row(num_running: int, num_waiting: int, repeats: int) -> dict[str, object]:
    """Host time of one decode step's scheduling, with a queue behind the batch."""
    allocator = PageAllocator(64 * num_running, 16)
    scheduler = Scheduler(
        max_num_reqs=num_running, max_num_batched_tokens=8192, max_model_len=2048, allocator=allocator
    )
    for index in range(num_running + num_waiting):
        params = SamplingParams(max_tokens=1000)
        scheduler.add(Request(request_id=str(index), prompt_token_ids=[1] * 8, params=params))

    sampled = np.full(num_running, 5, dtype=np.int64)
    unread: deque[ScheduledBatch] = deque()

    def step() -> None:  # as `EngineLoop` does: the tokens of the step before are read once this one is launched
        batch = scheduler.schedule()
        scheduler.advance(batch)
        unread.append(batch)
        if len(unread) > 1:
            read = unread.popleft()
            scheduler.complete(read, sampled[: len(read.sampling)])

    for _ in range(5):
        step()
    times = []
    for _ in range(max(repeats, 50)):
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1e6)
    assert (len(scheduler.running), len(scheduler.waiting)) == (num_running, num_waiting), "nobody came or went"
    return {
        "part": "scheduler",
        "batch": num_running,
        "queued": num_waiting,
        "scheduler_us": round(statistics.median(times), 1),
        "scheduler_us_spread": [round(min(times), 1), round(max(times), 1)],
    }


def main() -> None:
    """Measure the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="benchmarks/models/llama-3.2-1b")
    parser.add_argument("--part", choices=("all", "device", "scheduler"), default="all")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--note", help="kept in the file: what else the machine does")
    parser.add_argument("--json")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    day, hardware = time.strftime("%Y-%m-%d"), hardware_name(device)
    model = "none: the scheduler alone" if args.part == "scheduler" else args.model
    evidence = Evidence(
        bench="growth",
        date=day,
        model=model,
        hardware=hardware,
        versions=versions(device),
        command=["python", "benchmarks/growth.py", f"--part={args.part}", f"--repeats={args.repeats}"],
        repeats=args.repeats,
        config={"batches": BATCHES, "contexts": CONTEXTS, "queues": QUEUES},
        say=print,
    )
    if args.json:
        names = {"bench": "growth", "model": model, "hardware": short_hardware(hardware), "day": day}
        evidence.path = output_path(args.json, **names)
    if args.note:
        evidence.note(args.note)
    if args.part != "device":
        evidence.note("scheduler_us: schedule, advance, and complete of the step before with its tokens as an array")
        for num_running in BATCHES:
            for num_waiting in QUEUES:
                evidence.add(scheduler_row(num_running, num_waiting, args.repeats))
    if args.part != "scheduler":
        for row in device_rows(args.model, args.repeats):
            evidence.add(row)


if __name__ == "__main__":
    main()
