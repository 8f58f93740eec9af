"""Host time of Triton launches outside of graphs: by Triton's launcher, by ours, and of the bare call below both.

``python benchmarks/launch_cost.py --json OUT/`` times the real kernels of a mixed step of the Llama-3.2-1B shape, one
at a time, and then whole piecewise steps of that shape on random weights: 16 breaks, two launches each. The launchers
take turns within each repeat, since the clock of a shared machine drifts. ``bare`` is the compiled kernel run with its
arguments at hand; in steps it is the graphs alone. Other checkouts: ``ostinato bench segments``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ostinato import LLM
from ostinato.bench.engine_probe import facade_of, made_up, replay_host_us
from ostinato.bench.environment import versions
from ostinato.bench.evidence import Evidence, output_path
from ostinato.bench.naming import short_hardware
from ostinato.bench.statistics import summary
from ostinato.engine.attention import AttentionMetadata
from ostinato.engine.kernels import launcher
from ostinato.engine.kvcache import allocate_caches
from ostinato.engine.layers import FusedLinears
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, default_tiles
from ostinato.runtime import hardware_name

MODEL = Path(__file__).parent / "models" / "llama-3.2-1b"
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, PAGE_SIZE = 32, 8, 64, 2048, 16
BURST = 50
"""Launches between two waits for the device: fewer than its queue holds."""


@contextmanager
def launched_by(who: str) -> Iterator[None]:
    """Within it, ``"triton"`` launches by itself, as it does for each new specialisation; ``"ours"`` as it stands."""
    host = launcher._host
    if who == "triton":
        launcher._host = lambda: (None, "it is measured")  # type: ignore[assignment]
    try:
        yield
    finally:
        launcher._host = host


@contextmanager
def bare_calls() -> Iterator[list[Callable[[], Any]]]:
    """The calls of compiled kernels that our launcher makes within it, to be made again."""
    found: list[Callable[[], Any]] = []
    launch, compiled = launcher.Launch.__call__, {}

    class Noting(dict):  # type: ignore[type-arg]
        def get(self, key: Any, default: Any = None) -> Any:
            known = super().get(key, default)
            return known if known is None else (noting(known[0]), *known[1:])

    def noting(run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> None:
            found.append(lambda: run(*args))
            run(*args)

        return noted

    def watched(self: Any, *args: Any) -> None:
        if self not in compiled:
            compiled[self] = self._compiled
            self._compiled = Noting(self._compiled)
        launch(self, *args)

    launcher.Launch.__call__ = watched  # type: ignore[method-assign]
    try:
        yield found
    finally:
        launcher.Launch.__call__ = launch  # type: ignore[method-assign]
        for each, kept in compiled.items():
            each._compiled = kept


def kernels(num_tokens: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Calls as the engine makes them, of a step of ``num_tokens`` tokens of one request; decode of as many requests."""
    from ostinato.engine.attention.triton import TritonAttention
    from ostinato.engine.attention.triton.write import launch_rotary_write
    from ostinato.engine.layers.triton.rms_norm import launch_rms_norm

    half = {"dtype": torch.bfloat16, "device": device}
    width = -(-num_tokens // PAGE_SIZE)
    (cache,) = allocate_caches(
        num_layers=1,
        num_pages=1 + num_tokens * width,
        page_size=PAGE_SIZE,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        **half,
    )
    qkv = torch.randn(num_tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM, **half)
    rotary = torch.randn(num_tokens, HEAD_DIM, device=device)
    out, k = torch.empty(num_tokens, HEADS, HEAD_DIM, **half), torch.empty(num_tokens, KV_HEADS * HEAD_DIM, **half)
    x, weight = torch.randn(num_tokens, HIDDEN, **half), torch.randn(3072, HIDDEN, **half)
    projected, scale, norm = torch.empty(num_tokens, 3072, **half), HEAD_DIM**-0.5, torch.ones(HIDDEN, **half)
    shape = LinearShape(
        kind=LinearKind.LINEAR, num_rows=num_tokens, out_features=3072, in_features=HIDDEN, dtype="bfloat16"
    )
    tiles, linears, backend = default_tiles(shape), FusedLinears(), TritonAttention()
    slots = torch.arange(PAGE_SIZE, PAGE_SIZE + num_tokens, device=device)

    def metadata(num_reqs: int, query_len: int) -> AttentionMetadata:
        int32 = {"dtype": torch.int32, "device": device}
        return AttentionMetadata(
            num_tokens=num_tokens,
            slot_mapping=slots,
            block_tables=torch.arange(1, 1 + num_reqs * width, **int32).view(num_reqs, width),
            seq_lens=torch.full((num_reqs,), num_tokens, **int32),
            query_start=torch.arange(num_reqs + 1, **int32) * query_len,
            uniform_query_len=1 if query_len == 1 else None,
        )

    mixed, decode = metadata(1, num_tokens), metadata(num_tokens, 1)

    def attend(step: AttentionMetadata) -> None:
        backend.rotary_attend(qkv, rotary, out, cache, step, scale, None, None, 1e-5)

    found: dict[str, Callable[[], Any]] = {
        "rotary write": lambda: launch_rotary_write(qkv, rotary, out, k, cache, mixed, None, None, 1e-5),
        "varlen": lambda: backend.attend(out, out, cache, mixed, scale),
        "break of a mixed step": lambda: attend(mixed),
        "break of a decode step": lambda: attend(decode),
        "rms norm": lambda: launch_rms_norm(x, None, norm, 1e-5),
    }
    if tiles is not None:
        found["matrix linear"] = lambda: linears.linear(x, weight, out=projected)
    return found


def burst_us(run: Callable[[], Any]) -> float:
    """Host time of one call of ``run``."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(BURST):
        run()
    elapsed = time.perf_counter() - began
    torch.cuda.synchronize()
    return elapsed / BURST * 1e6


def kernel_rows(num_tokens: int, repeats: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row a kernel, or a break."""
    for name, run in kernels(num_tokens, device).items():
        run()
        run()
        with bare_calls() as calls:
            run()

        def bare(calls: list[Callable[[], Any]] = calls) -> None:
            for call in calls:
                call()

        times: dict[str, list[float]] = {"triton": [], "ours": [], "bare": []}
        for _ in range(repeats):
            for who, found in times.items():
                with launched_by(who):
                    found.append(burst_us(bare if who == "bare" else run))
        row: dict[str, Any] = {"what": name, "tokens": num_tokens, "launches": len(calls)}
        for who, found in times.items():
            row |= summary(f"{who}_us", found)
        yield row


def step_rows(num_tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    """A row a partition: the replay of a whole piecewise step, on the made-up prompts of its capture."""
    limits = {"max_model_len": 1024, "max_num_reqs": 4, "max_num_batched_tokens": num_tokens, "kv_tokens": 4096}
    with LLM(
        str(MODEL), load_format="dummy", mode="piecewise", token_sizes=(num_tokens,), decode_sizes=(1,), **limits
    ) as llm:
        graphed = facade_of(llm)
        key = next(key for key in graphed.plans if key.num_tokens == num_tokens)
        plan = graphed.plans[key]
        times: dict[str, list[float]] = {"triton": [], "ours": [], "bare": []}
        with made_up(graphed, key):
            for _ in range(max(1, repeats // 5)):
                for who in ("triton", "ours"):
                    with launched_by(who):
                        found = replay_host_us(graphed, key, repeats=10)
                    times[who] += found["on"]
                    times["bare"] += found["bare"]
        row: dict[str, Any] = {"what": "piecewise step", "tokens": num_tokens, "breaks": len(plan.breaks)}
        for who, values in times.items():
            row |= summary(f"{who}_us", values)
        for who in ("triton", "ours"):
            row[f"{who}_us_per_break"] = round((row[f"{who}_us"] - row["bare_us"]) / max(1, len(plan.breaks)), 2)
        yield row


def main() -> None:
    """Time kernels, then steps, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--skip-steps", action="store_true", help="kernels alone")
    parser.add_argument("--json", help="a file or a folder")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    if launcher.why_triton_launches() is not None:
        raise SystemExit(f"nothing to compare: {launcher.why_triton_launches()}")
    device = torch.device("cuda", torch.cuda.current_device())
    day, hardware = time.strftime("%Y-%m-%d"), hardware_name(device)
    evidence = Evidence(
        bench="launch_cost",
        date=day,
        model=MODEL.name,
        hardware=hardware,
        versions=versions(device),
        command=["python", "benchmarks/launch_cost.py", f"--tokens={args.tokens}", f"--repeats={args.repeats}"],
        repeats=args.repeats,
        config={"tokens": args.tokens, "burst": BURST, "page_size": PAGE_SIZE},
        say=print,
    )
    if args.json:
        names = {"bench": "launch_cost", "model": MODEL.name, "hardware": short_hardware(hardware), "day": day}
        evidence.path = output_path(args.json, **names)
    with torch.inference_mode():
        for row in kernel_rows(args.tokens, args.repeats, device):
            evidence.add(row)
    if not args.skip_steps:
        for row in step_rows(args.tokens, args.repeats):
            evidence.add(row)


if __name__ == "__main__":
    main()
