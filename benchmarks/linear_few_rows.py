"""Linear layers of 1 to 128 rows on a GPU: each kernel against cuBLAS over tile sizes, then whole decode steps.

``python benchmarks/linear_few_rows.py --json OUT`` measures the shapes of Llama-3.2-1B and Llama-3.1-8B on random
weights, prints the best tiles of each kernel, and the time of one decode step (a CUDA graph) on every path.
``--save`` keeps the choices where the engine looks for them. The first run compiles some hundred kernels.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

from ostinato import __version__
from ostinato.engine.attention import AttentionMetadata, ForwardContext, set_forward_context
from ostinato.engine.kvcache import allocate_caches
from ostinato.engine.layers import FusedLinears
from ostinato.engine.layers.linear_table import LinearTable, load_table, save_table, table_key
from ostinato.engine.layers.linear_tiles import LinearShape, LinearTiles, default_tiles, row_bucket
from ostinato.engine.layers.linear_tuning import measure_shape, weight_bytes
from ostinato.engine.models import ModelConfig, build_model
from ostinato.engine.models.linear_shapes import linear_shapes
from ostinato.engine.weights.cache import cache_root

COMMON = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5}
COMMON |= {"vocab_size": 128256, "max_position_embeddings": 2048, "rope_theta": 500000.0, "num_key_value_heads": 8}
MODELS = {
    "1b": COMMON
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    | {"head_dim": 64, "tie_word_embeddings": True},
    "8b": COMMON
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    | {"head_dim": 128, "tie_word_embeddings": False},
}
PAGE_SIZE = 16
REPLAYS = 20


def described(tiles: LinearTiles | None) -> str:
    """As short as a table wants it."""
    if tiles is None:
        return "cuBLAS"
    late = "" if tiles.is_early else " late"
    return f"{tiles.block_n}x{tiles.block_k}/{tiles.num_splits} w{tiles.num_warps} s{tiles.num_stages}{late}"


def sweep(shape: LinearShape, device: torch.device) -> tuple[LinearTiles | None, dict[str, object]]:
    """The fastest choice for ``shape``, and a row of the report."""
    timings = measure_shape(shape, device=device, use_pdl=True)
    best = min(timings, key=lambda timing: timing.time_us)
    by_tiles = {timing.tiles: timing.time_us for timing in timings}
    fused = min(timings[1:], key=lambda timing: timing.time_us)
    late = measure_shape(shape, device=device, use_pdl=False, tiles=[fused.tiles])[0]
    row = {
        "kind": shape.kind.value,
        "rows": shape.num_rows,
        "columns": shape.out_features,
        "depth": shape.in_features,
        "cublas_us": round(by_tiles[None], 2),
        "default_us": round(by_tiles[default_tiles(shape)], 2),
        "fused_us": round(fused.time_us, 2),
        "fused_no_pdl_us": round(late.time_us, 2),
        "tiles": described(fused.tiles),
        "gb_per_s": round(weight_bytes(shape) / best.time_us / 1e3),
        "all_us": {described(timing.tiles): round(timing.time_us, 2) for timing in timings},
    }
    return best.tiles, row


class DecodeStep:
    """A whole model's decode step, from token ids to logits, on random weights."""

    def __init__(self, hf: dict[str, object], device: torch.device, context: int) -> None:
        self.device, self.context = device, context
        self.config = ModelConfig.from_hf(hf)
        self.model = build_model(self.config, device=device, dtype=torch.bfloat16)
        self.model.init_dummy(0)
        self.model.bind_attention(fuses_rotary=True)

    def time_ms(self, num_rows: int, linears: FusedLinears, *, use_pdl: bool) -> float:
        """One replay."""
        from ostinato.engine.attention.triton import TritonAttention

        device, pages = self.device, -(-self.context // PAGE_SIZE)
        caches = allocate_caches(
            num_layers=self.config.num_layers,
            num_pages=1 + num_rows * pages,
            page_size=PAGE_SIZE,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=torch.bfloat16,
            device=device,
        )
        tables = torch.arange(1, 1 + num_rows * pages, dtype=torch.int32, device=device).view(num_rows, pages)
        metadata = AttentionMetadata(
            num_tokens=num_rows,
            slot_mapping=tables[:, -1].long() * PAGE_SIZE + (self.context - 1) % PAGE_SIZE,
            block_tables=tables,
            seq_lens=torch.full((num_rows,), self.context, dtype=torch.int32, device=device),
            query_start=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            uniform_query_len=1,
        )
        forward_context = ForwardContext(metadata, caches, TritonAttention(use_pdl=use_pdl))
        ids = torch.arange(num_rows, device=device) + 100
        positions = torch.full((num_rows,), self.context - 1, dtype=torch.int64, device=device)
        self.model.bind_linears(linears)

        def step() -> torch.Tensor:
            return self.model.compute_logits(self.model(ids, positions))

        with torch.inference_mode(), set_forward_context(forward_context):
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                step()
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            return replay_ms(graph)


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """Median time of a replay."""
    times = []
    for _ in range(REPLAYS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    graph.reset()
    return statistics.median(times[3:])


def report_kernels(model: ModelConfig, rows: list[int], device: torch.device, table: dict) -> list[dict[str, object]]:
    """Sweep every projection; choices go into ``table``."""
    found = []
    print(
        f"{'kind':18}{'rows':>5}{'N':>8}{'K':>7}{'cuBLAS':>9}{'default':>9}{'fused':>9}{'no PDL':>9}{'GB/s':>7}  tiles"
    )
    for shape in linear_shapes(model, dtype="bfloat16", rows=rows):
        table[shape], row = sweep(shape, device)
        found.append(row)
        print(
            f"{row['kind']:18}{row['rows']:>5}{row['columns']:>8}{row['depth']:>7}{row['cublas_us']:>9}"
            f"{row['default_us']:>9}{row['fused_us']:>9}{row['fused_no_pdl_us']:>9}{row['gb_per_s']:>7}"
            f"  {row['tiles']}",
            flush=True,
        )
    return found


def report_steps(
    hf: dict[str, object], rows: list[int], device: torch.device, context: int, table: LinearTable
) -> list[dict[str, object]]:
    """Time whole steps on every path."""
    step = DecodeStep(hf, device, context)
    read = [p for name, p in step.model.named_parameters() if name != "embedding" or step.config.has_tied_head]
    floor_ms = sum(p.numel() * p.element_size() for p in read) / 4.2e12 * 1e3
    found = []
    paths = ("cuBLAS", "default", "default, no PDL", "tuned", "tuned, no PDL")
    print(f"one step, ms (weights at 4.2 TB/s: {floor_ms:.3f})\n{'rows':>5}" + "".join(f"{p:>18}" for p in paths))

    class CuBLAS(LinearTable):
        def choose(self, shape: LinearShape) -> None:
            return None

    for num_rows in rows:
        linears = {
            "cuBLAS": (FusedLinears(CuBLAS()), True),
            "default": (FusedLinears(), True),
            "default, no PDL": (FusedLinears(use_pdl=False), False),
            "tuned": (FusedLinears(table), True),
            "tuned, no PDL": (FusedLinears(table, use_pdl=False), False),
        }
        times = {
            path: round(step.time_ms(num_rows, fused, use_pdl=is_early), 4)
            for path, (fused, is_early) in linears.items()
        }
        found.append({"rows": num_rows, "floor_ms": round(floor_ms, 4), **times})
        print(f"{num_rows:>5}" + "".join(f"{times[p]:>18}" for p in paths), flush=True)
    return found


def main() -> None:
    """Sweep, choose, time steps, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 29, 64, 128])
    parser.add_argument("--context", type=int, default=256, help="tokens of each request in whole steps")
    parser.add_argument("--skip-sweep", action="store_true", help="whole steps alone, with choices saved before")
    parser.add_argument("--save", action="store_true", help="keep the choices under the cache folder")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    key = table_key(device, use_pdl=True)
    saved = dict(load_table(cache_root(), key).choices)
    evidence: dict[str, object] = {
        "bench": "linear_few_rows",
        "date": time.strftime("%Y-%m-%d"),
        "hardware": torch.cuda.get_device_name(),
        "versions": {"ostinato": __version__, "python": platform.python_version(), **key},
        "command": ["python", *sys.argv],
        "context_tokens": args.context,
        "models": {},
    }
    buckets = sorted({row_bucket(rows) for rows in args.rows})
    for name in args.models:
        print(f"\n{name}", flush=True)
        hf = MODELS[name]
        kernels = [] if args.skip_sweep else report_kernels(ModelConfig.from_hf(hf), buckets, device, saved)
        torch.cuda.empty_cache()
        steps = report_steps(hf, args.rows, device, args.context, LinearTable(choices=saved))
        torch.cuda.empty_cache()
        evidence["models"][name] = {"kernels": kernels, "steps": steps}  # type: ignore[index]
    if args.save and not save_table(cache_root(), key, LinearTable(choices=saved)):
        print(f"the cache folder {cache_root()} cannot be written: nothing saved", file=sys.stderr)
    if args.json is not None:
        args.json.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
