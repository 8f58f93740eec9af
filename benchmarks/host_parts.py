"""Where the host's time of a decode step goes, part by part, in a whole engine on its device.

``python benchmarks/host_parts.py --model benchmarks/models/llama-3.2-1b --json OUT/`` decodes 256 requests with steps
overlapping, once as whole answers (`LLM.generate`) and once as streams. Clocks are put around functions that exist,
from here: the engine has none in it. As TPOT, a part is what an answer of 136 tokens takes more than one of 8, by 128
steps, so prompts are not in it. The time of a clocked call within another counts for the inner part alone.

Rows: ``step_us`` and ``host_us`` were measured without the clocks, ``clocked_step_us`` with them. The parts add up to
the latter, with ``other_us`` for what is in none of them. ``clocks_us`` is what the clocks themselves take of it, as
calibrated on a function that does nothing; most of it stands in the part that calls, so look at ``calls`` before a part
is believed to be slow. On a CPU the device's work is in ``launch_us`` and ``other_us``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ostinato.bench import BenchConfig, Evidence
from ostinato.bench.end_to_end import NUM_LONG, NUM_SHORT, EngineSeconds
from ostinato.bench.environment import versions
from ostinato.bench.evidence import output_path
from ostinato.bench.made_up_text import made_up_tokenizer
from ostinato.bench.model_costs import find_target
from ostinato.bench.run import Run
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.loop import EngineLoop
from ostinato.engine.outputs import RequestOutput, UpdateRouter
from ostinato.engine.sampling import PendingSample
from ostinato.engine.sampling.host_copy import HostCopy
from ostinato.engine.scheduler import Scheduler
from ostinato.engine.text import TextState
from ostinato.engine.updates import RequestUpdates
from ostinato.runtime import Graphed, hardware_name
from ostinato.runtime.buffers.staging import Staging
from ostinato.runtime.buffers.static import StaticBuffers
from ostinato.runtime.runners import CapturedKeys, CapturedPlan

OTHER: Final = "other"
PARTS: Final[dict[str, tuple[tuple[type, str], ...]]] = {
    "schedule": ((Scheduler, "schedule"),),
    "write_inputs": ((BatchWriter, "write"),),
    "upload": ((Staging, "open"), (Staging, "upload")),
    "decide_and_guards": ((Graphed, "decide"), (StaticBuffers, "check_addresses"), (CapturedKeys, "check")),
    "launch": ((CapturedPlan, "replay"),),
    "wait": ((HostCopy, "read"),),
    "way_back": ((PendingSample, "__init__"), (PendingSample, "read"), (PendingSample, "release")),
    "books": ((Scheduler, "advance"), (Scheduler, "complete"), (Scheduler, "finish")),
    "text": ((TextState, "push"), (TextState, "close")),
    "delivery": (
        (RequestUpdates, "hand_out"),
        (UpdateRouter, "step"),
        (UpdateRouter, "take_unread"),
        (RequestOutput, "extend"),
    ),
    OTHER: ((EngineLoop, "step"),),
}
"""Part -> the functions whose own time it is, without that of others here that they call."""
STEPS: Final = NUM_LONG - NUM_SHORT


class PartClocks:
    """Own time of functions by part, in seconds, and their calls. For one thread."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._within = 0.0  # clocked time inside of the call that is being clocked
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with a clock around it."""
        now, seconds, calls = self._now, self.seconds, self.calls

        def clocked(*args: Any, **kwargs: Any) -> Any:
            outer, self._within = self._within, 0.0
            began = now()
            try:
                return function(*args, **kwargs)
            finally:
                whole = now() - began
                seconds[part] += whole - self._within
                calls[part] += 1
                self._within = outer + whole

        return clocked

    @contextmanager
    def running(self) -> Iterator[None]:
        """Clocks are around all functions of `PARTS` in the block."""
        replaced = [(owner, name, owner.__dict__[name]) for part in PARTS.values() for owner, name in part]
        try:
            for part, functions in PARTS.items():
                for owner, name in functions:
                    setattr(owner, name, self.around(part, owner.__dict__[name]))
            yield
        finally:
            for owner, name, function in replaced:
                setattr(owner, name, function)


def clock_us(num_calls: int = 20_000) -> float:
    """What a clock adds to a call."""

    def nothing() -> None:
        pass

    def timed(function: Callable[[], None]) -> float:
        began = time.perf_counter()
        for _ in range(num_calls):
            function()
        return (time.perf_counter() - began) / num_calls * 1e6

    return min(timed(PartClocks().around("", nothing)) for _ in range(5)) - min(timed(nothing) for _ in range(5))


def measure_kind(run: Run, seconds: EngineSeconds, *, batch: int, prompt_tokens: int) -> dict[str, Any]:
    """Microseconds of a step, and of its parts: medians of the repeats, clocked and not in turn."""

    def once(num_tokens: int) -> tuple[float, float]:
        spent = seconds(run.prompts(batch, prompt_tokens), num_tokens)
        return spent, seconds.busy_seconds[-1]

    def clocked(num_tokens: int) -> tuple[Counter[str], Counter[str]]:
        clocks = PartClocks()
        with clocks.running():
            spent, _ = once(num_tokens)
        clocks.seconds["clocked_step"] = spent
        return clocks.seconds, clocks.calls

    for num_tokens in (NUM_LONG, NUM_SHORT):
        once(num_tokens)
        clocked(num_tokens)
    found: dict[str, list[float]] = {}
    calls: Counter[str] = Counter()
    for _ in range(run.repeats):
        short, long = once(NUM_SHORT), once(NUM_LONG)
        times = {"step": long[0] - short[0], "host": long[1] - short[1]}
        short_parts, long_parts = clocked(NUM_SHORT), clocked(NUM_LONG)
        times |= {name: long_parts[0][name] - short_parts[0][name] for name in ("clocked_step", *PARTS)}
        times[OTHER] = times["clocked_step"] - sum(times[part] for part in PARTS if part != OTHER)
        calls = Counter({part: long_parts[1][part] - short_parts[1][part] for part in PARTS})
        for name, spent in times.items():
            found.setdefault(name, []).append(spent / STEPS * 1e6)
    row: dict[str, Any] = {}
    for name, values in found.items():
        row[f"{name}_us"] = round(statistics.median(values), 1)
        row[f"{name}_us_spread"] = [round(min(values), 1), round(max(values), 1)]
    row["clocks_us"] = round(clock_us() * sum(calls.values()) / STEPS, 1)
    row["calls"] = {part: round(count / STEPS, 2) for part, count in calls.items()}
    return row


def main(given: Sequence[str] | None = None) -> Evidence:
    """Measure both kinds in one engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="benchmarks/models/llama-3.2-1b")
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=256, help="requests that decode at once")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--note", help="kept in the file: what else the machine does")
    parser.add_argument("--json")
    args = parser.parse_args(given)
    engine = EngineConfig(model=args.model, load_format=args.load_format, device=args.device, overlap=True)
    target = find_target(engine)
    day, hardware = time.strftime("%Y-%m-%d"), hardware_name(target.device)
    options = [f"--batch={args.batch}", f"--prompt-tokens={args.prompt_tokens}", f"--repeats={args.repeats}"]
    evidence = Evidence(
        bench="host_parts",
        date=day,
        model=args.model,
        hardware=hardware,
        versions=versions(target.device),
        command=["python", "benchmarks/host_parts.py", f"--model={args.model}", *options],
        repeats=args.repeats,
        config={"parts": {part: [f"{o.__name__}.{name}" for o, name in found] for part, found in PARTS.items()}},
        say=print,
    )
    if args.json:
        naming = {"bench": "host_parts", "model": args.model, "hardware": hardware, "day": day}
        evidence.path = output_path(args.json, **naming)
    if args.note:
        evidence.note(args.note)
    run = Run(
        config=BenchConfig(engine=engine),
        target=target,
        evidence=evidence,
        repeats=args.repeats,
        tokenizer=made_up_tokenizer(target, evidence),
    )
    settings: dict[str, Any] = {
        "mode": "full_decode_only",
        "decode_sizes": (args.batch,),
        "max_num_reqs": args.batch,
        # All prompts are through before the shorter answers end: else the longer ones have other steps before theirs.
        "max_num_batched_tokens": max(8192, -(-args.batch * args.prompt_tokens // (NUM_SHORT - 1))),
        "max_model_len": run.model_len(args.prompt_tokens + NUM_LONG, what="a request"),
    }
    with run.engine("engine", **settings) as llm:
        for kind in ("answers", "streams"):
            row = {"kind": kind, "batch": args.batch, "text": llm.tokenizer is not None}
            seconds = EngineSeconds(llm, is_streamed=kind == "streams")
            row |= measure_kind(run, seconds, batch=args.batch, prompt_tokens=args.prompt_tokens)
            evidence.add(row)
    return evidence


if __name__ == "__main__":
    main()
