"""A soak of the whole engine: a tiny model on the simulated backend, random traffic, planted faults.

``python benchmarks/soak.py --requests 20000 --json OUT.json`` lets the requests of `ostinato.testing.soak` through,
half of them with steps overlapped and half without, checks the books after every step, and asks some answers again at
the end, each alone. It stops at the first thing that is wrong. Deadlines go by the clock, so a few ends differ by run.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from ostinato import LLM
from ostinato.bench.environment import versions
from ostinato.bench.evidence import Evidence
from ostinato.runtime import hardware_name
from ostinato.testing.soak import Soak, failing_reads
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "mode": "full_and_piecewise",
    "page_size": 4,
    "kv_tokens": 100,  # fewer than a request may hold, so that pages run out in every way
    "max_model_len": 120,
    "max_num_reqs": 8,
    "max_num_batched_tokens": 48,
}
LOST_READS = 0.002


def soak_row(folder: str, num_requests: int, *, overlap: bool, seed: int) -> dict[str, Any]:
    """One engine's soak."""
    with LLM(folder, overlap=overlap, **SETTINGS) as llm:
        soak = Soak(
            llm._loop,
            vocab_size=llm._vocab_size,
            max_model_len=SETTINGS["max_model_len"],
            max_num_reqs=SETTINGS["max_num_reqs"],
            seed=seed,
        )
        began = time.perf_counter()
        with failing_reads(random.Random(seed + 2), LOST_READS) as num_lost:
            soak.run(num_requests)
        seconds = time.perf_counter() - began
        soak.faulty._failing_share = 0.0
        for prompt, params, token_ids in soak.undisturbed:
            (alone,) = llm.generate([prompt], params)
            if alone.token_ids != token_ids:
                raise SystemExit(f"an answer differs from the same request alone: {token_ids} and {alone.token_ids}")
        ends = Counter[str]()
        for end, count in soak.ends.items():
            ends[end.partition(": ")[2]] += count
        dispatch = llm.stats()["dispatch"]
        return {
            "overlap": overlap,
            "seed": seed,
            "requests": soak.num_ended,
            "seconds": round(seconds, 1),
            "steps": soak.num_steps,
            "tokens": soak.num_tokens,
            "ends": dict(ends.most_common()),
            "ends_by_fate": dict(sorted(soak.ends.items())),
            "steps_failed_at_launch": soak.faulty.num_failed,
            "steps_failed_at_read": num_lost[0],
            "preemptions": soak.num_preemptions,
            "peak_used_pages": soak.peak_used_pages,
            "usable_pages": soak._allocator.num_usable_pages,
            "peak_waiting": soak.peak_waiting,
            "steps_by_runtime_mode": dispatch["by_runtime_mode"],
            "answers_asked_again_alone": len(soak.undisturbed),
            "batch_writer_entries": len(llm._require_open()._writer._entries),
            "rests": [dataclasses.asdict(rest) for rest in soak.rests],
            "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }


def main() -> None:
    """Soak both ways and write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.getLogger("ostinato").setLevel(logging.CRITICAL + 1)  # each planted failure would be told
    torch.set_num_threads(1)
    device = torch.device("cpu")
    evidence = Evidence(
        bench="soak",
        date=time.strftime("%Y-%m-%d"),
        model="tiny llama (random weights), simulated capture backend",
        hardware=hardware_name(device),
        versions=versions(device),
        command=["python", "benchmarks/soak.py", f"--requests={args.requests}", f"--seed={args.seed}"],
        repeats=1,
        config=SETTINGS | {"lost_reads_share": LOST_READS},
        path=args.json,
        say=print,
    )
    evidence.note(
        "Checked after every step: the pages' books; every request is either in progress in the scheduler or has got "
        "exactly one last update, of a kind that its planted fate allows; its updates hold its own tokens, all of "
        "them. Checked at rest points: all pages free, as many ends as requests."
    )
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_tiny_model(Path(folder)))
        for index, overlap in enumerate((False, True)):
            num_requests = args.requests // 2 + (args.requests % 2) * index
            evidence.add(soak_row(model, num_requests, overlap=overlap, seed=args.seed + 10 * index))


if __name__ == "__main__":
    main()
