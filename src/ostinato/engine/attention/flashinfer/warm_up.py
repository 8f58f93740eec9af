"""Running each kernel once on a made-up step, so that FlashInfer compiles and loads before any capture.

Called by `FlashInferAttention.warm_up`.
"""

from __future__ import annotations

import torch

from ostinato.engine.attention.backend import AttentionShape, PlanningAttentionBackend
from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.kvcache import LayerCache, allocate_caches
from ostinato.engine.paging import pages_for
from ostinato.errors import DeviceUnavailableError, OstinatoError

__all__ = ["run_all_kernels"]

_PREFILL_ROWS = (1, 16, 256)
"""Tokens of a prompt that select tiles of 16, 64 and 128 rows (fewer where query heads share a KV head)."""


def run_all_kernels(backend: PlanningAttentionBackend, shape: AttentionShape) -> None:
    """Plan and run a decode as a full graph has it, and prompts of each tile size.

    Raises:
        DeviceUnavailableError: the kernels cannot be built here.
    """
    (cache,) = allocate_caches(
        num_layers=1,
        num_pages=1,
        page_size=shape.page_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=shape.device,
    )
    largest = min(shape.max_num_tokens, shape.max_model_len)
    try:
        _run(backend, shape, cache, num_tokens=1, is_for_graph=True)
        for num_tokens in sorted({min(rows, largest) for rows in _PREFILL_ROWS}):
            _run(backend, shape, cache, num_tokens=num_tokens, is_for_graph=False)
        if shape.device.type == "cuda":
            torch.cuda.synchronize(shape.device)
    except (OstinatoError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, OSError, ImportError) as error:
        raise DeviceUnavailableError(
            f"FlashInfer's kernels could not be built or run: {error}",
            fix="FlashInfer compiles with nvcc and ninja: install both (CUDA_HOME names the toolkit), "
            "or use attention='triton'",
        ) from error


def _run(
    backend: PlanningAttentionBackend, shape: AttentionShape, cache: LayerCache, *, num_tokens: int, is_for_graph: bool
) -> None:
    lens = () if is_for_graph else (num_tokens,)
    width = pages_for(num_tokens, shape.page_size)
    tables = torch.zeros((1, width), dtype=torch.int32)  # all in the null page
    metadata = AttentionMetadata(
        num_tokens=num_tokens,
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64, device=shape.device),
        block_tables=tables.to(shape.device),
        seq_lens=torch.tensor(lens or (0,), dtype=torch.int32, device=shape.device),
        query_start=torch.tensor((0, *(lens or (0,))), dtype=torch.int32, device=shape.device),
        uniform_query_len=1 if is_for_graph else None,
        host_query_lens=None if is_for_graph else lens,
        host_seq_lens=None if is_for_graph else lens,
    )
    rows = shape.num_heads + 2 * shape.num_kv_heads
    qkv = torch.zeros(num_tokens, rows, shape.head_dim, dtype=shape.dtype, device=shape.device)
    q, k, v = qkv.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), dim=1)
    out = torch.empty(num_tokens, shape.num_heads, shape.head_dim, dtype=shape.dtype, device=shape.device)
    backend.write_kv(k, v, cache, metadata)
    backend.plan_step(
        query_lens=lens, seq_lens=lens, block_tables=tables, graph_num_reqs=num_tokens if is_for_graph else None
    )
    backend.attend(q, out, cache, metadata, 1.0)
