"""Host work of eager steps without a GPU: the real model, layers and launch functions over a driver that does nothing.

``python benchmarks/eager_host.py --json OUT/`` runs the forward pass of the Llama-3.2-1B shape (16 layers, its widths a
sixteenth, its kernels chosen by the real ones) on CPU tensors that pass for CUDA's. Launches end in a builtin where
Triton's compiled kernel would be called, products in a tensor that is there already; what remains is what the host does
above both. Triton must be importable; none of its kernels is compiled. ``--against TREE`` measures another checkout's
``src`` too, in processes that take turns, since the clock of a shared machine drifts: compare rows of one file.

``step_us`` is the model up to the logits of one row, ``layer_us`` its share a layer (between 16 layers and 2),
``stand_ins_us`` what the stand-ins for kernels and products take of the step. Rows of kind ``break`` are one call of
attention as a replayed break makes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ostinato.bench.environment import versions
from ostinato.bench.evidence import Evidence, output_path
from ostinato.bench.naming import short_hardware
from ostinato.runtime import hardware_name

MODEL = Path(__file__).parent / "models" / "llama-3.2-1b"
SCALE = 16
"""Widths are so many times smaller than the model's: nothing is computed, but memory is allocated."""
LAYERS = (16, 2)
PAGE_SIZE = 16
CONTEXT = 256
"""Tokens of each decoding request."""
CASES = {"decode": (1, 8, 29), "prompt": (200, 1024)}
"""Rows of a step, by what it is: decodes of as many requests, or one prompt."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
"""Settings of the C library that let freed memory be had again without the system, as CUDA's allocator does."""


class Counted:
    """Calls of what was stood in for; `count` is set to 0 by who asks."""

    count = 0


def stand_in_launcher() -> Any:
    """Triton's own launcher of a compiled kernel, on top of a builtin."""
    from triton.backends.nvidia.driver import CudaLauncher

    launcher = CudaLauncher.__new__(CudaLauncher)
    for name in ("global_scratch", "profile_scratch"):
        setattr(launcher, f"{name}_size", 0)
        setattr(launcher, f"{name}_align", 1)
    launcher.num_ctas, launcher.launch_cooperative_grid, launcher.launch_pdl = 1, False, True
    launcher.arg_annotations, launcher.kernel_signature, launcher.gsan_enabled = (), b"", False  # since Triton 3.7
    launcher.launch = "".format
    return launcher


class StandInKernel:
    """A `triton.jit` function that is compiled already."""

    def __init__(self, kernel: Any) -> None:
        self.arg_names, self.pre_run_hooks = list(kernel.arg_names), []
        self.compiled = SimpleNamespace(run=stand_in_launcher(), function=1, packed_metadata=(1, 2, 3))

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **named: self.compiled


class StandInDriver:
    """What is asked at a launch, at the price that torch has."""

    def __init__(self) -> None:
        self.get_current_stream = abs  # a builtin with one argument, as torch's

    def get_current_device(self) -> int:
        """As `torch.cuda.current_device` does it."""
        self._lazy_init()
        return -abs(1)

    def _lazy_init(self) -> None:
        if self._is_initialized():
            return

    def _is_initialized(self) -> bool:
        return not None  # its fork is no bad one


def product(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    """In place of `torch.nn.functional.linear`; the result is never read."""
    Counted.count += 1
    key = x.shape[0], weight.shape[0]
    out = PRODUCTS.get(key)
    if out is None:
        out = PRODUCTS[key] = torch.empty(key, dtype=x.dtype)
    return out


def product_into(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """In place of `torch.mm` with a result."""
    Counted.count += 1
    return out


PRODUCTS: dict[tuple[int, int], torch.Tensor] = {}


def stand_in() -> None:
    """Let CPU tensors pass for CUDA's, before anything of the engine is imported; for the rest of the process."""
    torch.Tensor.is_cuda = torch.Tensor.is_cpu  # type: ignore[assignment, attr-defined]
    torch.nn.functional.linear = product  # type: ignore[assignment]
    torch.mm = product_into  # type: ignore[assignment]
    from ostinato.engine.kernels import launcher, programmatic_launch

    programmatic_launch.can_launch_early = functools.cache(lambda device: True)
    import triton

    driver = StandInDriver()
    triton.runtime.driver.set_active(driver)
    silent = SimpleNamespace(launch_enter_hook=None, launch_exit_hook=SimpleNamespace(calls=[]))
    host = launcher.LaunchHost(driver, silent)
    launcher._host = functools.cache(lambda: (host, None))
    init = launcher.Launcher.__init__
    launcher.Launcher.__init__ = lambda self, kernel, *args, **named: init(self, StandInKernel(kernel), *args, **named)  # type: ignore[method-assign]
    from ostinato.engine.attention.triton import configs

    configs._num_multiprocessors = functools.cache(lambda device: 132)  # type: ignore[assignment]


def model_of(num_layers: int) -> Any:
    """The model with ``num_layers`` layers, its kernels chosen as for the real widths on an H200."""
    from ostinato.engine.layers import FusedLinears
    from ostinato.engine.layers.linear_table import LinearTable
    from ostinato.engine.models import ModelConfig
    from ostinato.engine.models.decoder import DecoderModel

    class RealChoices(LinearTable):
        def choose(self, shape: Any) -> Any:
            wide = {name: getattr(shape, name) * SCALE for name in ("in_features", "out_features")}
            return super().choose(dataclasses.replace(shape, **wide))

    hf = json.loads((MODEL / "config.json").read_text())
    for name in ("hidden_size", "intermediate_size", "head_dim", "vocab_size"):
        hf[name] //= SCALE
    config = ModelConfig.from_hf({**hf, "num_hidden_layers": num_layers})
    torch.set_default_dtype(torch.bfloat16)
    model = DecoderModel(config, max_model_len=2048)
    torch.set_default_dtype(torch.float32)
    model.bind_attention(fuses_rotary=True)
    model.bind_linears(FusedLinears(RealChoices()))
    return model


def context_of(model: Any, kind: str, num_rows: int) -> Any:
    """The forward context of a step."""
    from ostinato.engine.attention import AttentionMetadata, ForwardContext
    from ostinato.engine.attention.triton import TritonAttention
    from ostinato.engine.kvcache import allocate_caches

    config = model.config
    num_reqs, query_len = (num_rows, 1) if kind == "decode" else (1, num_rows)
    length = CONTEXT if kind == "decode" else num_rows
    caches = allocate_caches(
        num_layers=config.num_layers,
        num_pages=2,
        page_size=PAGE_SIZE,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.bfloat16,
        device="cpu",
    )
    metadata = AttentionMetadata(
        num_tokens=num_rows,
        slot_mapping=torch.zeros(num_rows, dtype=torch.int64),
        block_tables=torch.zeros((num_reqs, 128), dtype=torch.int32)[:, : -(-length // PAGE_SIZE)],
        seq_lens=torch.full((num_reqs,), length, dtype=torch.int32),
        query_start=torch.arange(num_reqs + 1, dtype=torch.int32) * query_len,
        uniform_query_len=1 if kind == "decode" else None,
        host_query_lens=(query_len,) * num_reqs,
        host_seq_lens=(length,) * num_reqs,
    )
    return ForwardContext(metadata=metadata, caches=caches, backend=TritonAttention())


def step_of(model: Any, kind: str, num_rows: int) -> Callable[[], Any]:
    """One eager step as the executor makes it, from token ids to logits."""
    from ostinato.engine.attention import set_forward_context
    from ostinato.runtime.runners.eager import run_eager

    context = context_of(model, kind, num_rows)
    ids = torch.zeros(num_rows, dtype=torch.int64)

    def step() -> Any:
        with set_forward_context(context):
            hidden = run_eager(lambda: model(ids, ids))
        return model.compute_logits(hidden[:1])

    return step


def break_of(model: Any, kind: str, num_rows: int) -> Callable[[], Any]:
    """Attention of one layer, called as `BreakStep.run` calls it."""
    from ostinato.engine.attention import install_forward_context
    from ostinato.engine.attention.unified import rotary_paged_attention

    attention = model.layers[0].attention
    qkv = torch.empty(num_rows, attention.qkv.weight.shape[0], dtype=torch.bfloat16)
    rotary, out = (
        model.rotary(torch.zeros(num_rows, dtype=torch.int64)),
        torch.empty((num_rows, attention.num_heads, attention.head_dim), dtype=torch.bfloat16),
    )
    fn = rotary_paged_attention.__ostinato_break__.fn  # type: ignore[attr-defined]
    args = (qkv, rotary, out, None, None, 0, attention.scale, attention.norm_eps)
    install_forward_context(context_of(model, kind, num_rows))
    return lambda: fn(*args)


def launches_of(run: Callable[[], Any]) -> tuple[int, int]:
    """Kernels and products of one call of ``run``, which has run before."""
    from ostinato.engine.kernels import launcher

    (host, _), num = launcher._host(), []  # each launch asks for the stream once
    ask, host.current_stream = host.current_stream, lambda device: num.append(device) or 1
    Counted.count = 0
    run()
    host.current_stream = ask
    return len(num), Counted.count


def lowest_us(*runs: Callable[[], Any], num_times: int) -> list[float]:
    """The least of ``num_times`` single calls of each, in turns: what the host takes when nobody disturbs it."""
    times: list[list[float]] = [[] for _ in runs]
    for run in (*runs, *runs):
        run()
    gc.collect()
    gc.disable()
    for _ in range(num_times):
        for run, found in zip(runs, times, strict=True):
            began = time.perf_counter()
            run()
            found.append(time.perf_counter() - began)
    gc.enable()
    return [min(found) * 1e6 for found in times]


def stand_ins_us(num_kernels: int, num_products: int, num_times: int) -> float:
    """Of as many launches and products."""
    x, weight = torch.empty(1, 1), torch.empty(1, 1)
    arguments = range(20)

    def run() -> None:
        for _ in range(num_kernels):
            "".format(*arguments)
        for _ in range(num_products):
            torch.nn.functional.linear(x, weight, None)

    (least,) = lowest_us(run, num_times=num_times)
    return least


def measure_all(num_times: int) -> list[dict[str, Any]]:
    """Every row once, in this process."""
    torch.set_num_threads(1)
    stand_in()
    deep, flat = (model_of(num_layers) for num_layers in LAYERS)
    rows = []
    with torch.inference_mode():
        for kind, sizes in CASES.items():
            for num_rows in sizes:
                step = step_of(deep, kind, num_rows)
                step()
                kernels, products = launches_of(step)
                whole, part = lowest_us(step, step_of(flat, kind, num_rows), num_times=num_times)
                row = {"kind": kind, "rows": num_rows, "kernels": kernels, "products": products}
                row |= {"step_us": whole, "layer_us": (whole - part) / (LAYERS[0] - LAYERS[1])}
                rows.append(row | {"stand_ins_us": stand_ins_us(kernels, products, num_times)})
        for kind, num_rows in (("decode", 29), ("prompt", 200)):
            run = break_of(deep, kind, num_rows)
            run()
            kernels, products = launches_of(run)
            row = {"kind": f"break of a {kind}", "rows": num_rows, "kernels": kernels, "products": products}
            (whole,) = lowest_us(run, num_times=10 * num_times)
            rows.append(row | {"step_us": whole, "stand_ins_us": stand_ins_us(kernels, products, num_times)})
    return rows


def measured_in(source: Path, num_times: int) -> list[dict[str, Any]]:
    """`measure_all` in a process of its own, with the package in ``source``."""
    command = [sys.executable, __file__, "--child", f"--times={num_times}"]
    path = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **ALLOCATOR, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main() -> None:
    """Measure this checkout, and another in turn with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--note", help="kept in the file: which checkout")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each")
    parser.add_argument("--times", type=int, default=200, help="steps a row and process")
    parser.add_argument("--json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure_all(args.times)))
        return
    import triton

    device = torch.device("cpu")
    day, hardware = time.strftime("%Y-%m-%d"), hardware_name(device)
    evidence = Evidence(
        bench="eager_host",
        date=day,
        model=MODEL.name,
        hardware=hardware,
        versions={**versions(device), "triton": str(triton.__version__)},
        command=["python", "benchmarks/eager_host.py", f"--repeats={args.repeats}", f"--times={args.times}"],
        repeats=args.repeats,
        config={"layers": LAYERS, "scale": SCALE, "page_size": PAGE_SIZE, "context": CONTEXT},
        say=print,
    )
    if args.json:
        names = {"bench": "eager_host", "model": MODEL.name, "hardware": short_hardware(hardware), "day": day}
        evidence.path = output_path(args.json, **names)
    if args.note:
        evidence.note(args.note)
    trees = {"here": Path(__file__).parents[1] / "src"}
    if args.against:
        trees["against"] = args.against.resolve() / "src"
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in trees}
    for _ in range(args.repeats):
        for name, source in trees.items():
            found[name].append(measured_in(source, args.times))
    for place, first in enumerate(found["here"][0]):
        what = {key: first[key] for key in ("kind", "rows", "kernels", "products")}
        row = dict(what)
        for name, runs in found.items():
            suffix = "" if name == "here" else f"_{name}"
            assert what.items() <= runs[0][place].items(), "both trees launch alike"
            for key in ("step_us", "layer_us", "stand_ins_us"):
                values = [run[place][key] for run in runs if key in run[place]]
                if values:
                    row[f"{key}{suffix}"] = round(min(values), 1)
                    row[f"{key}{suffix}_spread"] = [round(min(values), 1), round(max(values), 1)]
        if args.against:
            row["ratio"] = round(row["step_us_against"] / row["step_us"], 2)
        evidence.add(row)


if __name__ == "__main__":
    main()
