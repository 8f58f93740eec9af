"""What it gives to shape batches toward buckets, on a trace: padding saved, and what requests wait for it.

``python benchmarks/shaping.py --trace azure_llm_2023_code.csv --json OUT/`` serves the trace on a virtual clock by the
engine's scheduler, with the ladder of a plan and of other engines, shaped and not. A step takes the time of its padded
size (`bench.traffic.StepModel`). No device is needed, and no machine matters.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import statistics
import time
from pathlib import Path

from ostinato.bench.evidence import Evidence, output_path
from ostinato.bench.load import TimedRequest, read_trace
from ostinato.bench.statistics import percentiles
from ostinato.bench.traffic import StepModel, serve_virtually, traffic_of
from ostinato.runtime import plan_traffic

Ladder = dict[str, list[int]]


def ladders_for(requests: list[TimedRequest], model: StepModel) -> dict[str, Ladder]:
    """A plan of 16 sizes each, and the other engines' defaults."""
    document = plan_traffic(traffic_of(requests, model))
    plans = {"plan": document, **document["peers"]}
    return {
        name: {kind: plan[kind]["sizes"] for kind in ("decode", "mixed") if kind in plan}
        for name, plan in plans.items()
    }


def row(requests: list[TimedRequest], model: StepModel, ladder: Ladder, *, is_shaped: bool) -> dict[str, object]:
    """One serving of the trace."""
    run = serve_virtually(requests, model, buckets=ladder, is_shaped=is_shaped)
    return {
        "decode_pad_percent": round(run.pad_percent("decode"), 3),
        "mixed_pad_percent": round(run.pad_percent("mixed"), 3),
        "decode_steps": sum(run.decode.values()),
        "mixed_steps": sum(run.mixed.values()),
        **percentiles("ttft_ms", run.ttft_ms),
        **percentiles("latency_ms", run.latency_ms),
        "ttft_ms_mean": round(statistics.mean(run.ttft_ms), 2),
        "latency_ms_mean": round(statistics.mean(run.latency_ms), 2),
    }


def main() -> None:
    """Serve the trace every way and write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--load-factors", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--chunk-tokens", type=int, nargs="+", default=[2048, 1800])
    parser.add_argument("--json")
    args = parser.parse_args()
    day = time.strftime("%Y%m%d")
    evidence = Evidence(
        bench="shaping",
        date=time.strftime("%Y-%m-%d"),
        model=args.trace.name,
        hardware="none: a virtual clock",
        versions={"python": platform.python_version()},
        command=["python", "benchmarks/shaping.py", "--trace", args.trace.name],
        repeats=1,
        config={"step_model": dataclasses.asdict(StepModel()), "graphs": 16},
        path=output_path(args.json, bench="shaping", model=args.trace.stem, hardware="virtual", day=day)
        if args.json
        else None,
        say=print,
    )
    evidence.note("Steps above a ladder's largest size are not padded. A deadline would keep its request from waiting.")
    for load_factor in args.load_factors:
        requests = read_trace(args.trace, speed=load_factor)
        for chunk_tokens in args.chunk_tokens:
            model = StepModel(chunk_tokens=chunk_tokens)
            for name, ladder in ladders_for(requests, StepModel()).items():
                for is_shaped in (False, True):
                    setting = {"load_factor": load_factor, "chunk_tokens": chunk_tokens, "ladder": name}
                    evidence.add({**setting, "shaped": is_shaped, **row(requests, model, ladder, is_shaped=is_shaped)})


if __name__ == "__main__":
    main()
