"""Time per output token of the whole engine, per mode and batch size, on random weights.

``python benchmarks/decode_tpot.py --model benchmarks/models/llama-3.2-1b --json OUT`` prints a table and
writes an evidence file. Absolute times mean something on a GPU only.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from pathlib import Path

import torch

from ostinato import LLM, SamplingParams, __version__

SHORT, LONG = 8, 136
PROMPT_TOKENS = 128


def seconds_for(llm: LLM, prompts: list[list[int]], num_tokens: int) -> float:
    """Wall time until every prompt has ``num_tokens`` output tokens."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    wrong = [o for o in outputs if o.error is not None or len(o.token_ids) != num_tokens]
    if wrong:
        raise SystemExit(f"a request did not finish: {wrong[0].error}")
    return seconds


def measure(llm: LLM, batch: int, repeats: int, vocab_size: int) -> dict[str, object]:
    """One row: TPOT at ``batch`` and how the steps ran."""
    rng = random.Random(batch)
    prompts = [[rng.randrange(100, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
    seconds_for(llm, prompts, SHORT)
    before = llm.stats()["dispatch"]["by_runtime_mode"]
    tpots = []
    for _ in range(repeats):
        short = seconds_for(llm, prompts, SHORT)
        tpots.append((seconds_for(llm, prompts, LONG) - short) / (LONG - SHORT) * 1e3)
    after = llm.stats()["dispatch"]["by_runtime_mode"]
    return {
        "batch": batch,
        "tpot_ms": round(statistics.median(tpots), 4),
        "tpot_ms_spread": [round(min(tpots), 4), round(max(tpots), 4)],
        "steps_by_runtime_mode": {mode: after[mode] - before.get(mode, 0) for mode in after},
    }


def main() -> None:
    """Measure every mode and batch size asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--modes", nargs="+", default=["none", "piecewise", "full_and_piecewise"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 29, 64, 128, 256])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows, configs = [], {}
    for mode in args.modes:
        start = time.perf_counter()
        settings = {"mode": mode, "device": args.device, "load_format": "dummy", "max_model_len": 1024}
        with LLM(args.model, max_num_reqs=max(args.batches), **settings) as llm:
            start_seconds = time.perf_counter() - start
            vocab_size = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
            for batch in args.batches:
                row = {"mode": mode, **measure(llm, batch, args.repeats, vocab_size)}
                rows.append(row)
                print(json.dumps(row), flush=True)
            stats = llm.stats()
            configs[mode] = {**stats["config"], "graphs": stats["graphs"], "start_seconds": round(start_seconds, 2)}
    eager = {row["batch"]: row["tpot_ms"] for row in rows if row["mode"] == "none"}
    for row in rows:
        if row["batch"] in eager:
            row["speedup_over_eager"] = round(eager[row["batch"]] / row["tpot_ms"], 2)
    is_cuda = torch.cuda.is_available()
    evidence = {
        "bench": "decode_tpot",
        "date": time.strftime("%Y-%m-%d"),
        "model": Path(args.model).name,
        "hardware": torch.cuda.get_device_name() if is_cuda else platform.processor() or platform.machine(),
        "versions": {"ostinato": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "command": ["python", *sys.argv],
        "config": configs,
        "repeats": args.repeats,
        "rows": rows,
    }
    if args.json is not None:
        args.json.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
