"""Does cuBLASLt know a faster algorithm for a decode step's linear layers than the one that torch's product takes?

``python benchmarks/linear_cublaslt.py --json OUT`` asks the library for its proposals for each projection of
Llama-3.2-1B and 3.1-8B at each number of rows, times every one of them in a CUDA graph over copies of the weight that
no cache holds, and prints the best beside torch's product and the floor of bytes and arithmetic. Needs no package:
the library is the one that torch has loaded, called by ctypes.
Source of the numbers: the headers cublasLt.h and library_types.h of CUDA 13.0.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ostinato import __version__

BF16, FP32_ACCUMULATE, FP32 = 14, 68, 0
TRANS_A, TRANS_B, MAX_WORKSPACE = 3, 4, 1
WORKSPACE_BYTES = 32 * 2**20
NUM_PROPOSALS = 64
ROTATED_BYTES = 160 * 2**20
BYTES_PER_S, FLOP_PER_S = 4.2e12, 780e12
# out_features, in_features
SHAPES = {
    "1b": {"qkv": (3072, 2048), "out": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192)},
    "8b": {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)},
}
SHAPES["1b"]["head"], SHAPES["8b"]["head"] = (128256, 2048), (128256, 4096)


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class CublasLt:
    """The few calls that are needed, checked."""

    def __init__(self) -> None:
        torch.ones(16, 16, device="cuda") @ torch.ones(16, 16, device="cuda")  # loads it
        with open("/proc/self/maps", encoding="ascii") as maps:
            path = next(line.split()[-1] for line in maps if "libcublasLt.so" in line)
        self._library = ctypes.CDLL(path)
        self.handle = ctypes.c_void_p()
        self("cublasLtCreate", ctypes.byref(self.handle))
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, name: str, *args: object) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def layout(self, rows: int, columns: int) -> ctypes.c_void_p:
        """Of a matrix without gaps, column after column."""
        made = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        self("cublasLtMatrixLayoutCreate", ctypes.byref(made), BF16, *sizes)
        return made


class Product:
    """``x @ weight.T`` for one shape, by any algorithm that is proposed for it."""

    def __init__(self, lt: CublasLt, num_rows: int, columns: int, depth: int) -> None:
        self._lt = lt
        self._operation, preference = ctypes.c_void_p(), ctypes.c_void_p()
        lt("cublasLtMatmulDescCreate", ctypes.byref(self._operation), FP32_ACCUMULATE, FP32)
        for attribute, is_transposed in ((TRANS_A, 1), (TRANS_B, 0)):
            value = ctypes.byref(ctypes.c_int32(is_transposed))
            lt("cublasLtMatmulDescSetAttribute", self._operation, attribute, value, ctypes.c_size_t(4))
        self._layouts = lt.layout(depth, columns), lt.layout(depth, num_rows), lt.layout(columns, num_rows)
        lt("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        limit = ctypes.byref(ctypes.c_size_t(WORKSPACE_BYTES))
        lt("cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE, limit, ctypes.c_size_t(8))
        found, count = (Proposal * NUM_PROPOSALS)(), ctypes.c_int(0)
        weight, x, out = self._layouts
        lt(
            "cublasLtMatmulAlgoGetHeuristic", lt.handle, self._operation, weight, x, out, out, preference,
            NUM_PROPOSALS, found, ctypes.byref(count),
        )  # fmt: skip
        self.proposals = [proposal for proposal in found[: count.value] if proposal.status == 0]

    def run(self, proposal: Proposal, weight: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
        """On the current stream."""
        one, zero = ctypes.byref(ctypes.c_float(1.0)), ctypes.byref(ctypes.c_float(0.0))
        weight_layout, x_layout, out_layout = self._layouts
        result = ctypes.c_void_p(out.data_ptr())
        self._lt(
            "cublasLtMatmul", self._lt.handle, self._operation,
            one, ctypes.c_void_p(weight.data_ptr()), weight_layout, ctypes.c_void_p(x.data_ptr()), x_layout,
            zero, result, out_layout, result, out_layout, ctypes.byref(proposal.algorithm),
            ctypes.c_void_p(self._lt.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip


def time_us(op: Callable[[torch.Tensor], object], weights: list[torch.Tensor]) -> float:
    """Of one op in a chain of them in a CUDA graph: median of five replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        op(weights[0])
    torch.cuda.synchronize()
    graph, length = torch.cuda.CUDAGraph(), max(len(weights), 12)
    with torch.cuda.graph(graph, stream=side):
        for index in range(length):
            op(weights[index % len(weights)])
    times = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    graph.reset()
    return statistics.median(times[1:]) / length


def measure(lt: CublasLt, weights: list[torch.Tensor], num_rows: int) -> dict[str, object]:
    """Torch's product and all proposals at so many rows."""
    columns, depth = weights[0].shape
    x = torch.randn(num_rows, depth, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(num_rows, columns, device="cuda", dtype=torch.bfloat16)
    expected = torch.mm(x, weights[0].t()).float()
    before = time_us(lambda weight: torch.mm(x, weight.t(), out=out), weights)
    product, times = Product(lt, num_rows, columns, depth), []
    for proposal in product.proposals:
        times.append(time_us(lambda weight, by=proposal: product.run(by, weight, x, out), weights))
        product.run(proposal, weights[0], x, out)
        torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    after = time_us(lambda weight: torch.mm(x, weight.t(), out=out), weights)
    torch_us, best_us = min(before, after), min(times)
    floor_us = max(2 * columns * depth / BYTES_PER_S, 2 * num_rows * columns * depth / FLOP_PER_S) * 1e6
    return {
        "rows": num_rows,
        "columns": columns,
        "depth": depth,
        "floor_us": round(floor_us, 2),
        "torch_us": round(torch_us, 2),
        "best_us": round(best_us, 2),
        "gain_percent": round(100 * (1 - best_us / torch_us), 1),
        "all_us": [round(value, 2) for value in times],
    }


@torch.inference_mode()
def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 32, 64, 128, 256])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    lt, found = CublasLt(), []
    print(f"{'layer':12}{'rows':>5}{'floor':>9}{'torch':>9}{'best':>9}{'gain %':>8}  proposals")
    for model in args.models:
        for name, (columns, depth) in SHAPES[model].items():
            copies = max(2, -(-ROTATED_BYTES // (2 * columns * depth)))
            weights = [
                torch.randn(columns, depth, device="cuda", dtype=torch.bfloat16) * depth**-0.5 for _ in range(copies)
            ]
            for num_rows in args.rows:
                row = {"layer": f"{model} {name}", **measure(lt, weights, num_rows)}
                found.append(row)
                print(
                    f"{row['layer']:12}{num_rows:>5}{row['floor_us']:>9}{row['torch_us']:>9}{row['best_us']:>9}"
                    f"{row['gain_percent']:>8}  {len(row['all_us'])}",  # type: ignore[arg-type]
                    flush=True,
                )
    if args.json is not None:
        evidence = {
            "bench": "linear_cublaslt",
            "date": time.strftime("%Y-%m-%d"),
            "hardware": torch.cuda.get_device_name(),
            "versions": {"ostinato": __version__, "python": platform.python_version(), "torch": torch.__version__},
            "command": ["python", *sys.argv],
            "rows": found,
        }
        args.json.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
