"""What each way to make piecewise graphs costs and gives: capture time, graphs, pool bytes, step time by tokens.

``python benchmarks/partitions.py --model benchmarks/models/llama-3.2-1b --json OUT`` runs breakable, fx,
fx with compiled pieces, and inductor on random weights. A step is a prefill of so many tokens, replayed as
captured; eager runs beside it. Times by device events, median of the repeats.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ostinato import LLM, __version__

VARIANTS = {
    "breakable": ("breakable", "none"),
    "fx": ("fx", "none"),
    "fx+inductor": ("fx", "inductor"),
    "inductor": ("inductor", "none"),
}
TOKENS = (16, 64, 256, 1024, 4096)


def milliseconds(run: Any, repeats: int) -> dict[str, float | list[float]]:
    """Median and spread of one call's time, on the device's clock where there is one."""
    times = []
    for index in range(repeats + 2):
        if torch.cuda.is_available():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            elapsed = start.elapsed_time(end)
        else:
            began = time.perf_counter()
            run()
            elapsed = (time.perf_counter() - began) * 1e3
        if index >= 2:
            times.append(elapsed)
    spread = [round(min(times), 4), round(max(times), 4)]
    return {"step_ms": round(statistics.median(times), 4), "step_ms_spread": spread}


def measure(model: str, name: str, tokens: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Rows of one variant, one for each size."""
    partition, compiler = VARIANTS[name]
    began = time.perf_counter()
    settings: dict[str, Any] = {
        "load_format": "dummy",
        "mode": "piecewise",
        "partition": partition,
        "compile": compiler,
        "max_num_reqs": 8,
        "max_model_len": max(tokens),
        "max_num_batched_tokens": max(tokens),
        "token_sizes": tokens,
        "kv_tokens": 2 * max(tokens),
    }
    rows = []
    with LLM(model, **settings) as llm, torch.inference_mode():
        start_seconds = round(time.perf_counter() - began, 2)
        executor = llm._executor
        assert executor is not None
        graphed, stats = executor.graphed, llm.stats()
        for key in graphed.keys:
            plan = graphed.plans[key]
            executor._prepare(key)
            views = graphed.buffers.views(graphed.key_sizes(key))
            row: dict[str, Any] = {
                "variant": name,
                "tokens": key.num_tokens,
                **milliseconds(lambda plan=plan, n=key.num_tokens: plan.replay(n), repeats),
                "eager_ms": milliseconds(lambda views=views: executor.forward(**views), repeats)["step_ms"],
                "segments": plan.num_segments,
                "nodes": plan.num_nodes,
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
        for row in rows:
            row |= {"start_seconds": start_seconds, **stats["graphs"]}
    return rows


def main() -> None:
    """Measure every variant asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for name in args.variants:
        try:
            rows += measure(args.model, name, tuple(args.tokens), args.repeats)
        except Exception as error:  # the other variants are still worth measuring
            failed[name] = str(error)
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        if args.json is not None:  # after each variant: a run that is cut short leaves what it has
            args.json.write_text(json.dumps(evidence(args, rows, failed), indent=1) + "\n")
    if failed:
        raise SystemExit(1)


def evidence(args: argparse.Namespace, rows: list[dict[str, Any]], failed: dict[str, str]) -> dict[str, Any]:
    """What the file says: what was run, on what, and what came out."""
    is_cuda = torch.cuda.is_available()
    return {
        "bench": "partitions",
        "date": time.strftime("%Y-%m-%d"),
        "model": Path(args.model).name,
        "hardware": torch.cuda.get_device_name() if is_cuda else platform.machine(),
        "versions": {"ostinato": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "command": ["python", *sys.argv],
        "config": {"tokens": args.tokens, "variants": args.variants},
        "repeats": args.repeats,
        "failed": failed,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
